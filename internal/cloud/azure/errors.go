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

// apiError is an error response of Azure, see https://github.com/Azure/azure-resource-manager-rpc. AKS omits the outer
// "error" object.
type apiError struct {
	Status  int
	Code    string
	Message string
	// Detail is the first of its details; nil if it has none.
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
	maxCodeLength    = 128
	maxMessageLength = 600
	// The retry delays if Azure names none: after throttling, while another operation is in progress, and after a
	// resource has changed since it was read.
	defaultRetryDelay = 30 * time.Second
	busyRetryDelay    = 10 * time.Second
	changedRetryDelay = time.Second
)

// parseErrorBody parses an error response. If the body is not an ARM error, the code of the result is empty. Then no
// conclusion is drawn from the error.
func parseErrorBody(status int, body []byte) *apiError {
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
		return &apiError{Status: status, Message: cloud.SanitizeText(string(body), maxMessageLength)}
	}
	found := outer.inner
	if len(outer.Error) > 0 {
		var nested inner
		if json.Unmarshal(outer.Error, &nested) == nil && nested.Code != "" {
			found = nested
		}
	}
	err := &apiError{Status: status, Code: cloud.SanitizeText(found.Code, maxCodeLength), Message: cloud.SanitizeText(found.Message, maxMessageLength)}
	var details []plain
	if json.Unmarshal(found.Details, &details) == nil && len(details) > 0 && details[0].Code != "" {
		err.Detail = &apiError{Code: cloud.SanitizeText(details[0].Code, maxCodeLength), Message: cloud.SanitizeText(details[0].Message, maxMessageLength)}
	}
	return err
}

// fromSDKError converts an error of the SDK to the errors of [cloud.Provider]. A 404 stays an [apiError], because its
// meaning depends on the request, see isGone.
func fromSDKError(doing string, err error) error {
	var response *azcore.ResponseError
	if errors.As(err, &response) {
		return fmt.Errorf("%s: %w", doing, fromResponseError(response))
	}
	var authentication *azidentity.AuthenticationFailedError
	var elsewhere *foreignHostError
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w", doing, err)
	case errors.As(err, &elsewhere):
		return fmt.Errorf("%s: %w", doing, elsewhere)
	case errors.As(err, &authentication) && isPermanentAuthFailure(authentication.RawResponse),
		strings.Contains(err.Error(), noCredentialPrefix):
		return fmt.Errorf("%s: %w", doing, &cloud.RefusedError{Reason: cloud.NoRight, Err: fmt.Errorf(
			"no token for Azure: %s: check auth.method, AZURE_TENANT_ID, AZURE_CLIENT_ID and the other variables of this method",
			cloud.SanitizeText(err.Error(), maxMessageLength))})
	}
	return fmt.Errorf("%s: %s: %w", doing, cloud.SanitizeText(err.Error(), maxMessageLength), errNoResponse)
}

// errNoResponse means that a request failed without a readable response. The wrapping error has the message of the SDK.
var errNoResponse = errors.New("no readable response from Azure")

// noCredentialPrefix is the beginning of the error text of DefaultAzureCredential if no method has a credential.
const noCredentialPrefix = "failed to acquire a token"

func isPermanentAuthFailure(response *http.Response) bool {
	return response != nil && response.StatusCode >= 400 && response.StatusCode < 500 &&
		response.StatusCode != http.StatusTooManyRequests
}

func fromResponseError(response *azcore.ResponseError) error {
	api := &apiError{Status: response.StatusCode, Code: cloud.SanitizeText(response.ErrorCode, maxCodeLength)}
	var header http.Header
	if raw := response.RawResponse; raw != nil {
		header = raw.Header
		if body, err := runtime.Payload(raw); err == nil {
			api = parseErrorBody(response.StatusCode, body)
		}
	}
	return toProviderError(api, header)
}

// toProviderError converts an error response to the errors of [cloud.Provider].
func toProviderError(api *apiError, header http.Header) error {
	pause := parseRetryDelay(header, time.Now())
	switch {
	case api.Status == http.StatusTooManyRequests, api.Status == http.StatusServiceUnavailable && pause > 0:
		return &cloud.ThrottledError{RetryAfter: cmp.Or(pause, defaultRetryDelay), Err: api}
	case api.Status == http.StatusPreconditionFailed:
		return &cloud.ThrottledError{RetryAfter: cmp.Or(pause, changedRetryDelay), Err: fmt.Errorf(
			"it has changed since it was read; read it again: %w", api)}
	case api.isBusy():
		return &cloud.ThrottledError{RetryAfter: cmp.Or(pause, busyRetryDelay), Err: api}
	}
	if reason := api.refusalReason(); reason != "" {
		return &cloud.RefusedError{Reason: reason, Err: api.withExplanation()}
	}
	return api
}

// codePreempted is the code of an operation that a newer operation on the resource has ended.
const codePreempted = "OperationPreempted"

// isPreempted reports whether err says that a newer operation has ended an operation.
func isPreempted(err error) bool {
	var api *apiError
	return errors.As(err, &api) && api.Code == codePreempted
}

// isBusy reports whether Azure refused a request because another operation on the resource is in progress. AKS runs one
// operation per pool at a time.
func (e *apiError) isBusy() bool {
	if e.Status != http.StatusConflict && e.Status != http.StatusBadRequest {
		return false
	}
	if slices.Contains([]string{"AnotherOperationInProgress", codePreempted, "PutAgentPoolInProgress", "Conflict"}, e.Code) {
		return true
	}
	return e.Code == "OperationNotAllowed" && strings.Contains(strings.ToLower(e.Message), "in progress")
}

// refusalReason returns the reason of a permanent error. It returns "" for an error that may be temporary.
func (e *apiError) refusalReason() cloud.Refusal {
	message := strings.ToLower(e.Message)
	switch {
	case e.Status == http.StatusUnauthorized, e.Status == http.StatusForbidden:
		return cloud.NoRight
	case e.Code == "ScopeLocked", strings.Contains(message, "protectfromscale"):
		return cloud.Protected
	case e.Code == "InvalidTemplateDeployment" && e.Detail != nil:
		return (&apiError{Status: e.Status, Code: e.Detail.Code, Message: e.Detail.Message}).refusalReason()
	case slices.Contains(noQuotaCodes(), e.Code), e.Code == "OperationNotAllowed" && strings.Contains(message, "quota"):
		return cloud.NoQuota
	case slices.Contains(noCapacityCodes(), e.Code):
		return cloud.NoCapacity
	case slices.Contains([]string{"SubscriptionNotFound", "ResourceGroupNotFound"}, e.Code),
		e.Status == http.StatusBadRequest && e.Code != "":
		return cloud.Invalid
	}
	if inner := nestedCodePattern.FindStringSubmatch(e.Message); inner != nil && inner[1] != e.Code {
		return (&apiError{Code: inner[1], Message: nestedCodePattern.ReplaceAllString(e.Message, "")}).refusalReason()
	}
	return ""
}

// nestedCodePattern finds an error code of compute in the message of an AKS error. An example of such an AKS error is
// ReconcileVMSSAgentPoolFailed.
var nestedCodePattern = regexp.MustCompile(`\bCode="(\w+)"`)

// noQuotaCodes returns the error codes of compute and AKS for an exceeded quota. They include the code of a refused
// deployment without details.
func noQuotaCodes() []string {
	return []string{"QuotaExceeded", "ErrCode_InsufficientVCPUQuota", "InvalidTemplateDeployment"}
}

// noCapacityCodes returns the error codes for missing capacity, from
// https://learn.microsoft.com/troubleshoot/azure/virtual-machines/allocation-failure.
func noCapacityCodes() []string {
	return []string{
		"AllocationFailed", "ZonalAllocationFailed", "OverconstrainedAllocationRequest", "OverconstrainedZonalAllocationRequest",
		"SkuNotAvailable",
	}
}

// missingPermissionPattern finds the action and the scope in the message of an AuthorizationFailed error.
var missingPermissionPattern = regexp.MustCompile(`perform action '([^']+)' over scope '([^']+)'`)

// withExplanation returns the error with its cause in words, if the message or the code shows the cause.
func (e *apiError) withExplanation() error {
	if found := missingPermissionPattern.FindStringSubmatch(e.Message); found != nil {
		return fmt.Errorf("the credential lacks %s on %s: %w", found[1], found[2], e)
	}
	switch e.Code {
	case "SubscriptionNotFound":
		return fmt.Errorf("the subscription does not exist, or the credential is of another tenant: %w", e)
	case "ResourceGroupNotFound":
		return fmt.Errorf("the resource group does not exist: %w", e)
	}
	return e
}

// goneCodes returns the error codes of a 404 that mean that the requested object does not exist. A 404 with another
// code, for example from a proxy, proves nothing (I7: unknown is not gone).
func goneCodes() []string {
	return []string{"ResourceNotFound", "NotFound", "ParentResourceNotFound", "InstanceNotFound", "VMNotFound"}
}

// isGone reports whether err is a 404 with one of the goneCodes. A NotFound that concerns an operation or an API
// version does not count.
func isGone(err error) bool {
	var api *apiError
	if !errors.As(err, &api) || api.Status != http.StatusNotFound || !slices.Contains(goneCodes(), api.Code) {
		return false
	}
	return api.Code != "NotFound" || !otherObjectPattern.MatchString(api.Message)
}

// otherObjectPattern matches the message of a 404 that concerns an operation, an API version or a resource provider.
var otherObjectPattern = regexp.MustCompile(`(?i)\boperation\b.*\bnot\b.*\bfound\b|\bapi.?version\b|\bresource provider\b`)

// parseRetryDelay returns the retry delay that Azure asks for, and 0 if Azure asks for none. The millisecond headers of
// Azure take precedence over Retry-After, as in the SDK.
func parseRetryDelay(header http.Header, now time.Time) time.Duration {
	for _, name := range []string{"retry-after-ms", "x-ms-retry-after-ms"} {
		if pause := cloud.ParseRetryHeader(header, name, time.Millisecond); pause > 0 {
			return pause
		}
	}
	return cloud.ParseRetryAfter(header, now)
}
