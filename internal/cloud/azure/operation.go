package azure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/elapsed"
)

// operation is the content of [cloud.Operation].ID. It does not use the SDK's resume token, because the ID is stored
// and another version of Slipway may read it.
type operation struct {
	// URL is the status URL in ARM; empty if only the instance has to be watched.
	URL string `json:"url,omitempty"`
	// Machine is the provider ID of the instance that is being deleted. The deletion is complete when it is gone. Empty
	// if only URL tells the result.
	Machine string `json:"machine,omitempty"`
}

func (o operation) toCloudOperation(started time.Time) cloud.Operation {
	if o == (operation{}) {
		return cloud.Operation{Started: started}
	}
	return cloud.NewOperation(o, started)
}

// decodeOperation decodes an operation ID. It returns an error if the URL of the operation is not on host, because a
// user may have changed the stored ID.
func decodeOperation(id, host string) (operation, error) {
	var o operation
	if err := cloud.DecodeOperation(id, &o); err != nil {
		return operation{}, err
	}
	if err := o.validate(id, host); err != nil {
		return operation{}, &cloud.RefusedError{Reason: cloud.Invalid, Err: err}
	}
	return o, nil
}

func (o operation) validate(id, host string) error {
	if o == (operation{}) {
		return fmt.Errorf("operation %.200q: want a url or a machine", id)
	}
	if o.URL == "" {
		return nil
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return fmt.Errorf("operation: url %.200q: want a URL", o.URL)
	}
	if !isSameServer(u, &url.URL{Scheme: "https", Host: host}) || u.User != nil {
		return &foreignHostError{host: u.Host, want: host}
	}
	return nil
}

// statusURL returns the status URL from a response. It returns "" if the operation is complete. Azure-AsyncOperation
// takes precedence over Location, as ARM's documentation requires.
func statusURL(response *http.Response) string {
	if response == nil {
		return ""
	}
	for _, name := range []string{"Azure-AsyncOperation", "Operation-Location"} {
		if u := response.Header.Get(name); u != "" {
			return u
		}
	}
	if response.StatusCode == http.StatusAccepted {
		return response.Header.Get("Location")
	}
	return ""
}

// Status returns the progress of an operation. A deletion is done when its instance is gone, or when the deletion has
// failed. A launch that a newer operation of the group has preempted is done without an error, because the size still
// counts its instances: the group shows whether the newer operation makes them.
func (p *Provider) Status(ctx context.Context, op cloud.Operation) (cloud.OperationStatus, error) {
	o, status, err := p.readOperation(ctx, op)
	if o.Machine == "" && isPreempted(status.Err) {
		status.Err = nil
	}
	return status, err
}

// readOperation decodes an operation and returns its progress. A preempted operation has failed.
func (p *Provider) readOperation(ctx context.Context, op cloud.Operation) (o operation, status cloud.OperationStatus, err error) {
	status.Done = true
	if op.ID == "" {
		return o, status, nil
	}
	if o, err = decodeOperation(op.ID, p.clients.armHost); err != nil {
		return o, cloud.OperationStatus{}, err
	}
	if o.URL != "" {
		var forgotten bool
		status, forgotten, err = p.statuses.get(ctx, o.URL, p.fetchStatus)
		if err != nil && ctx.Err() == nil {
			status, err = p.statusAfterURLFailure(ctx, o, op.Started, err)
			return o, status, err
		}
		if err != nil || forgotten || !status.Done {
			return o, status, err
		}
	}
	if o.Machine != "" {
		status, err = p.deletionStatus(ctx, o.Machine, status.Err)
	}
	return o, status, err
}

// The limits for a status URL that returns only errors. maxStatusFailure ends a deletion: then the state of the
// instance decides. maxGrowDuration ends an operation without an instance, which has then failed.
const (
	maxStatusFailure = 10 * time.Minute
	maxGrowDuration  = time.Hour
)

// isServerError reports whether err is a 5xx response.
func isServerError(err error) bool {
	var api *apiError
	return errors.As(err, &api) && api.Status >= http.StatusInternalServerError
}

// statusAfterURLFailure returns the status of an operation with a status URL that returns an error. The URL may refuse
// forever, or return a page of a proxy. So every operation ends after a time limit. If the instance of a deletion still
// exists, the caller can request the deletion again.
func (p *Provider) statusAfterURLFailure(ctx context.Context, o operation, started time.Time, readErr error) (cloud.OperationStatus, error) {
	over := func(wait time.Duration) bool { return elapsed.HasElapsed(started, time.Now(), wait) }
	switch {
	case o.Machine == "" && over(maxGrowDuration):
		return cloud.OperationStatus{Done: true, Err: readErr}, nil
	case o.Machine == "", !over(maxStatusFailure) && !isServerError(readErr):
		return cloud.OperationStatus{}, readErr
	}
	status, err := p.deletionStatus(ctx, o.Machine, readErr)
	if err == nil && status.Err != nil && !over(maxStatusFailure) {
		return cloud.OperationStatus{}, readErr
	}
	return status, err
}

// deletionStatus returns the status of a deletion from the state of its instance. It is called after the operation has
// ended, which may cover several instances.
func (p *Provider) deletionStatus(ctx context.Context, machine string, failure error) (cloud.OperationStatus, error) {
	id, err := p.parseID(machine)
	if err != nil {
		return cloud.OperationStatus{}, err
	}
	at := time.Now()
	m, err := p.fetchInstance(ctx, id)
	if cloud.IsNotFound(err) {
		p.cacheRead(id, recentRead{notFound: err, readAt: at})
		return cloud.OperationStatus{Done: true}, nil
	}
	if err != nil {
		return cloud.OperationStatus{}, err
	}
	if m.State == cloud.Deleting {
		return cloud.OperationStatus{RetryAfter: deletionPollInterval}, nil
	}
	status := cloud.OperationStatus{Done: true, Err: failure}
	if failure == nil {
		status.Err = fmt.Errorf("instance %s still exists, %s %s", id, m.State, m.Message)
	}
	return status, nil
}

// fetchStatus reads a status URL once. The response formats are in
// https://learn.microsoft.com/azure/azure-resource-manager/management/async-operations.
func (p *Provider) fetchStatus(ctx context.Context, address string) (status cloud.OperationStatus, forgotten bool, err error) {
	const doing = "following an operation"
	request, err := runtime.NewRequest(ctx, http.MethodGet, address)
	if err != nil {
		return status, false, fmt.Errorf("%s: %w", doing, err)
	}
	response, err := p.clients.arm.Pipeline().Do(request)
	if err != nil {
		return status, false, fromSDKError(doing, err)
	}
	defer func() { _ = response.Body.Close() }() // the body was read or is not needed
	body, err := runtime.Payload(response)
	if err != nil {
		return status, false, fromSDKError(doing, err)
	}
	return parseStatusResponse(response.StatusCode, response.Header, body)
}

// isOperationFailure reports whether an error response of a Location URL means that the operation has failed. That is
// any 4xx, except a 4xx about the status request itself. A conflict such as OperationPreempted means that the operation
// failed, because a read conflicts with nothing. A 404 without an Azure error code comes from a proxy.
func isOperationFailure(code int) bool {
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusProxyAuthRequired,
		http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	}
	return code >= 400 && code < 500
}

// parseStatusResponse parses the response of a status URL.
func parseStatusResponse(code int, header http.Header, body []byte) (status cloud.OperationStatus, forgotten bool, err error) {
	const doing = "following an operation"
	switch {
	case code == http.StatusAccepted:
		return cloud.OperationStatus{RetryAfter: parseRetryDelay(header, time.Now())}, false, nil
	case code == http.StatusNoContent:
		return cloud.OperationStatus{Done: true}, false, nil
	case code == http.StatusNotFound && parseErrorBody(code, body).Code != "":
		return cloud.OperationStatus{Done: true}, true, nil
	case code != http.StatusOK && code != http.StatusCreated:
		failure := parseErrorBody(code, body)
		if isOperationFailure(code) {
			return cloud.OperationStatus{Done: true, Err: toProviderError(failure, header)}, false, nil
		}
		return status, false, fmt.Errorf("%s: %w", doing, toProviderError(failure, header))
	}
	if len(body) == 0 {
		return cloud.OperationStatus{Done: true}, false, nil
	}
	var answer struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return status, false, fmt.Errorf("%s: %w: %s", doing, errIncomplete, cloud.SanitizeText(string(body), maxMessageLength))
	}
	switch strings.ToLower(answer.Status) {
	case "", "succeeded": // a Location URL returns the resource at the end
		return cloud.OperationStatus{Done: true}, false, nil
	case "failed", "canceled":
		failure := parseErrorBody(0, body)
		if failure.Code == "" {
			failure.Code = answer.Status
		}
		return cloud.OperationStatus{Done: true, Err: toProviderError(failure, nil)}, false, nil
	}
	return cloud.OperationStatus{RetryAfter: parseRetryDelay(header, time.Now())}, false, nil
}
