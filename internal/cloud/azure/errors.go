package azure

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"

	"github.com/slipway-dev/slipway/internal/cloud"
)

// apiError is an error as Azure's answers describe it, see
// https://github.com/Azure/azure-resource-manager-rpc. AKS leaves out the outer "error".
type apiError struct {
	Status  int
	Code    string
	Message string
	// Detail is the first of its details; nil when it has none.
	Detail *apiError
}

func (e *apiError) Error() string {
	text := strings.TrimSpace(fmt.Sprintf("%d %s", e.Status, e.Code))
	if e.Status == 0 {
		text = e.Code
	}
	if e.Message != "" {
		text += ": " + e.Message
	}
	if e.Detail != nil {
		text += " (" + e.Detail.Error() + ")"
	}
	return text
}

const (
	maxCode    = 128
	maxMessage = 600
	// defaultPause is how long Azure is left alone when it wants to be and does not say for how long, busyPause the same
	// while another operation is in progress, and changedPause after a resource has changed since it was read.
	defaultPause = 30 * time.Second
	busyPause    = 10 * time.Second
	changedPause = time.Second
)

// parseError reads the body of an error. What is no error in ARM's form has no code, so that nothing can be concluded
// from it.
func parseError(status int, body []byte) *apiError {
	type plain struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}
	type inner struct {
		plain
		Details json.RawMessage `json:"details"`
	}
	var outer struct {
		inner
		Error json.RawMessage `json:"error"`
	}
	if err := json.Unmarshal(body, &outer); err != nil {
		return &apiError{Status: status, Message: cloud.Printable(string(body), maxMessage)}
	}
	found := outer.inner
	if len(outer.Error) > 0 {
		var nested inner
		if json.Unmarshal(outer.Error, &nested) == nil && nested.Code != "" {
			found = nested
		}
	}
	err := &apiError{Status: status, Code: cloud.Printable(found.Code, maxCode), Message: cloud.Printable(found.Message, maxMessage)}
	var details []plain
	if json.Unmarshal(found.Details, &details) == nil && len(details) > 0 && details[0].Code != "" {
		err.Detail = &apiError{Code: cloud.Printable(details[0].Code, maxCode), Message: cloud.Printable(details[0].Message, maxMessage)}
	}
	return err
}

// ofSDK makes of an SDK error what [cloud.Provider] promises, and of a 404 a plain error: what it means depends on what
// was asked for, see [gone].
func ofSDK(doing string, err error) error {
	var response *azcore.ResponseError
	if errors.As(err, &response) {
		return fmt.Errorf("%s: %w", doing, ofResponse(response))
	}
	var authentication *azidentity.AuthenticationFailedError
	var elsewhere *elsewhereError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", doing, err)
	case errors.As(err, &elsewhere):
		return fmt.Errorf("%s: %w", doing, elsewhere)
	case errors.As(err, &authentication) && refusesForGood(authentication.RawResponse),
		strings.Contains(err.Error(), chainFailed):
		return fmt.Errorf("%s: %w", doing, &cloud.RefusedError{Reason: cloud.NoRight, Err: fmt.Errorf(
			"no token for Azure: %s; check auth.method, and AZURE_TENANT_ID, AZURE_CLIENT_ID and what goes with them",
			cloud.Printable(err.Error(), maxMessage))})
	}
	return fmt.Errorf("%s: %s: %w", doing, cloud.Printable(err.Error(), maxMessage), errOfTransport)
}

// errOfTransport is what went wrong on the way to Azure and back. The SDK's own error is in the message.
var errOfTransport = errors.New("no answer that can be read from Azure")

// chainFailed begins what the default chain says when none of its members has anything to offer.
const chainFailed = "failed to acquire a token"

func refusesForGood(response *http.Response) bool {
	return response != nil && response.StatusCode >= 400 && response.StatusCode < 500 &&
		response.StatusCode != http.StatusTooManyRequests
}

func ofResponse(response *azcore.ResponseError) error {
	api := &apiError{Status: response.StatusCode, Code: cloud.Printable(response.ErrorCode, maxCode)}
	var header http.Header
	if raw := response.RawResponse; raw != nil {
		header = raw.Header
		if body, err := runtime.Payload(raw); err == nil {
			api = parseError(response.StatusCode, body)
		}
	}
	return classify(api, header)
}

// classify says what an error of Azure means to a caller.
func classify(api *apiError, header http.Header) error {
	pause := retryAfter(header, time.Now())
	switch {
	case api.Status == http.StatusTooManyRequests, api.Status == http.StatusServiceUnavailable && pause > 0:
		return &cloud.ThrottledError{After: cmp.Or(pause, defaultPause), Err: api}
	case api.Status == http.StatusPreconditionFailed:
		return &cloud.ThrottledError{After: cmp.Or(pause, changedPause), Err: fmt.Errorf(
			"it has changed since it was read; read it and decide anew: %w", api)}
	case api.busy():
		return &cloud.ThrottledError{After: cmp.Or(pause, busyPause), Err: api}
	}
	if reason := api.refusal(); reason != "" {
		return &cloud.RefusedError{Reason: reason, Err: api.explained()}
	}
	return api
}

// busy reports that the resource has something else to do first. AKS carries out one operation of a pool at a time.
func (e *apiError) busy() bool {
	if e.Status != http.StatusConflict && e.Status != http.StatusBadRequest {
		return false
	}
	if slices.Contains([]string{"AnotherOperationInProgress", "OperationPreempted", "PutAgentPoolInProgress", "Conflict"}, e.Code) {
		return true
	}
	return e.Code == "OperationNotAllowed" && strings.Contains(strings.ToLower(e.Message), "in progress")
}

// refusal says why Azure will not do what it was asked; "" for an error that may pass.
func (e *apiError) refusal() cloud.Refusal {
	message := strings.ToLower(e.Message)
	switch {
	case e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden:
		return cloud.NoRight
	case e.Code == "ScopeLocked", strings.Contains(message, "protectfromscale"):
		return cloud.Protected
	case e.Code == "InvalidTemplateDeployment" && e.Detail != nil:
		return (&apiError{Status: e.Status, Code: e.Detail.Code, Message: e.Detail.Message}).refusal()
	case slices.Contains(noQuotaCodes(), e.Code), e.Code == "OperationNotAllowed" && strings.Contains(message, "quota"):
		return cloud.NoQuota
	case slices.Contains(noCapacityCodes(), e.Code):
		return cloud.NoCapacity
	case slices.Contains([]string{"SubscriptionNotFound", "ResourceGroupNotFound"}, e.Code),
		e.Status == http.StatusBadRequest && e.Code != "":
		return cloud.Invalid
	}
	if inner := codeWithin.FindStringSubmatch(e.Message); inner != nil && inner[1] != e.Code {
		return (&apiError{Code: inner[1], Message: codeWithin.ReplaceAllString(e.Message, "")}).refusal()
	}
	return ""
}

// codeWithin finds the code of compute that AKS has in the message of an error of its own, such as ReconcileVMSSAgentPoolFailed.
var codeWithin = regexp.MustCompile(`\bCode="(\w+)"`)

// noQuotaCodes are the codes of compute and AKS for a used-up quota, and the code of a refused deployment without details.
func noQuotaCodes() []string {
	return []string{"QuotaExceeded", "ErrCode_InsufficientVCPUQuota", "InvalidTemplateDeployment"}
}

// noCapacityCodes are those of https://learn.microsoft.com/troubleshoot/azure/virtual-machines/allocation-failure.
func noCapacityCodes() []string {
	return []string{
		"AllocationFailed", "ZonalAllocationFailed", "OverconstrainedAllocationRequest", "OverconstrainedZonalAllocationRequest",
		"SkuNotAvailable",
	}
}

// lacking finds the action and the scope in the message of an AuthorizationFailed.
var lacking = regexp.MustCompile(`perform action '([^']+)' over scope '([^']+)'`)

// explained puts first what there is to do.
func (e *apiError) explained() error {
	if found := lacking.FindStringSubmatch(e.Message); found != nil {
		return fmt.Errorf("the credential lacks %s on %s: %w", found[1], found[2], e)
	}
	switch e.Code {
	case "SubscriptionNotFound":
		return fmt.Errorf("the subscription does not exist, or is not of the credential's tenant: %w", e)
	case "ResourceGroupNotFound":
		return fmt.Errorf("the resource group does not exist: %w", e)
	}
	return e
}

// goneCodes are the codes of a 404 by which Azure says that what was asked for does not exist. Any other 404, such as
// one of a proxy or of a subscription that the credential does not see, says nothing about it (I7).
func goneCodes() []string {
	return []string{"ResourceNotFound", "NotFound", "ParentResourceNotFound", "InstanceNotFound", "VMNotFound"}
}

// gone reports whether an error is Azure's own word that what was asked for does not exist. The code NotFound is also that
// of an operation, or of an API version, that is not found.
func gone(err error) bool {
	var api *apiError
	if !errors.As(err, &api) || api.Status != http.StatusNotFound || !slices.Contains(goneCodes(), api.Code) {
		return false
	}
	return api.Code != "NotFound" || !ofSomethingElse.MatchString(api.Message)
}

// ofSomethingElse finds what a 404 is about that is neither a machine nor a group.
var ofSomethingElse = regexp.MustCompile(`(?i)\boperation\b.*\bnot\b.*\bfound\b|\bapi.?version\b|\bresource provider\b`)

// retryAfter reads how long Azure wants to be left alone, 0 for no wish. Its own headers, in milliseconds, come before the
// standard's, as they do in its SDK.
func retryAfter(header http.Header, now time.Time) time.Duration {
	for _, name := range []string{"retry-after-ms", "x-ms-retry-after-ms"} {
		if pause := cloud.PauseIn(header, name, time.Millisecond); pause > 0 {
			return pause
		}
	}
	return cloud.RetryAfter(header, now)
}
