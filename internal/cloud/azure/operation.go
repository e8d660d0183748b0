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

// operation is what a [cloud.Operation]'s ID says. It is our own form rather than the SDK's resume token, since it is
// written down, and may be read by another version.
type operation struct {
	// URL is where ARM says how far it is; empty when the machine alone is to be watched.
	URL string `json:"url,omitempty"`
	// Machine is the provider ID of the machine that is being deleted, whose absence is the proof; empty when the
	// operation's own word is all there is.
	Machine string `json:"machine,omitempty"`
}

func (o operation) encode(started time.Time) cloud.Operation {
	if o == (operation{}) {
		return cloud.Operation{Started: started}
	}
	return cloud.NewOperation(o, started)
}

// decodeOperation reads an ID. Its URL has to be one of host: it was kept where others may have been able to write.
func decodeOperation(id, host string) (operation, error) {
	var o operation
	if err := cloud.DecodeOperation(id, &o); err != nil {
		return operation{}, err
	}
	if err := o.check(id, host); err != nil {
		return operation{}, &cloud.RefusedError{Reason: cloud.Invalid, Err: err}
	}
	return o, nil
}

func (o operation) check(id, host string) error {
	if o == (operation{}) {
		return fmt.Errorf("operation %.200q: says neither where to ask nor what to look at", id)
	}
	if o.URL == "" {
		return nil
	}
	u, err := url.Parse(o.URL)
	if err != nil {
		return fmt.Errorf("operation: url %.200q: want a URL", o.URL)
	}
	if !sameServer(u, &url.URL{Scheme: "https", Host: host}) || u.User != nil {
		return &elsewhereError{host: u.Host, want: host}
	}
	return nil
}

// followURL is where the answer to a request says that its operation can be followed; empty when it is done already.
// Azure-AsyncOperation says more than Location, and comes first, as ARM's documentation wants.
func followURL(response *http.Response) string {
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

// Status asks how far an operation is. A deletion is done when its machine is gone, or when it has failed.
func (p *Provider) Status(ctx context.Context, op cloud.Operation) (cloud.Status, error) {
	if op.ID == "" {
		return cloud.Status{Done: true}, nil
	}
	o, err := decodeOperation(op.ID, p.clients.armHost)
	if err != nil {
		return cloud.Status{}, err
	}
	status := cloud.Status{Done: true}
	if o.URL != "" {
		var forgotten bool
		status, forgotten, err = p.statuses.read(ctx, o.URL, p.ask)
		if err != nil && ctx.Err() == nil {
			return p.outcomeWithout(ctx, o, op.Started, err)
		}
		if err != nil || forgotten || !status.Done {
			return status, err
		}
	}
	if o.Machine == "" {
		return status, nil
	}
	return p.outcomeFor(ctx, o.Machine, status.Err)
}

// The longest times for which the address of an operation may answer with errors. After maxSilence the instance of a deletion
// decides. After maxGrowing an operation that deletes no instance has failed.
const (
	maxSilence = 10 * time.Minute
	maxGrowing = time.Hour
)

// broken reports an error of the server that an operation's address is of, which may pass or stay.
func broken(err error) bool {
	var api *apiError
	return errors.As(err, &api) && api.Status >= http.StatusInternalServerError
}

// outcomeWithout gives the status of an operation that cannot be read. Each error ends it some time: an address may answer for
// ever with a refusal, or with a page of a proxy. An instance that is neither gone nor being deleted can be deleted again.
func (p *Provider) outcomeWithout(ctx context.Context, o operation, started time.Time, unread error) (cloud.Status, error) {
	over := func(wait time.Duration) bool { return elapsed.Over(started, time.Now(), wait) }
	switch {
	case o.Machine == "" && over(maxGrowing):
		return cloud.Status{Done: true, Err: unread}, nil
	case o.Machine == "", !over(maxSilence) && !broken(unread):
		return cloud.Status{}, unread
	}
	status, err := p.outcomeFor(ctx, o.Machine, unread)
	if err == nil && status.Err != nil && !over(maxSilence) {
		return cloud.Status{}, unread
	}
	return status, err
}

// outcomeFor looks at the machine of a deletion whose operation, of several machines perhaps, has ended.
func (p *Provider) outcomeFor(ctx context.Context, machine string, failure error) (cloud.Status, error) {
	id, err := p.own(machine)
	if err != nil {
		return cloud.Status{}, err
	}
	at := time.Now()
	m, err := p.instance(ctx, id)
	if cloud.IsNotFound(err) {
		p.rememberRead(id, read{gone: err, at: at})
		return cloud.Status{Done: true}, nil
	}
	if err != nil {
		return cloud.Status{}, err
	}
	if m.State == cloud.Deleting {
		return cloud.Status{After: followPause}, nil
	}
	status := cloud.Status{Done: true, Err: failure}
	if failure == nil {
		status.Err = fmt.Errorf("machine %s is still there, %s %s", id, m.State, m.Message)
	}
	return status, nil
}

// ask reads an operation's address once. See
// https://learn.microsoft.com/azure/azure-resource-manager/management/async-operations for the forms of the answer.
func (p *Provider) ask(ctx context.Context, address string) (status cloud.Status, forgotten bool, err error) {
	const doing = "following an operation"
	request, err := runtime.NewRequest(ctx, http.MethodGet, address)
	if err != nil {
		return status, false, fmt.Errorf("%s: %w", doing, err)
	}
	response, err := p.clients.arm.Pipeline().Do(request)
	if err != nil {
		return status, false, ofSDK(doing, err)
	}
	defer func() { _ = response.Body.Close() }() // after a read to the end, or in place of one
	body, err := runtime.Payload(response)
	if err != nil {
		return status, false, ofSDK(doing, err)
	}
	return readOperation(response.StatusCode, response.Header, body)
}

// endsOperation reports an answer by which a failed operation ends that is asked by its Location: any 4xx but those about
// the request itself. A conflict, such as OperationPreempted, is what the operation failed of: no question is in the way of another
// operation. A 404 without a code of Azure's is from something in between.
func endsOperation(code int) bool {
	switch code {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound, http.StatusProxyAuthRequired,
		http.StatusRequestTimeout, http.StatusTooManyRequests:
		return false
	}
	return code >= 400 && code < 500
}

// readOperation reads what an operation's address answered.
func readOperation(code int, header http.Header, body []byte) (status cloud.Status, forgotten bool, err error) {
	const doing = "following an operation"
	switch {
	case code == http.StatusAccepted:
		return cloud.Status{After: retryAfter(header, time.Now())}, false, nil
	case code == http.StatusNoContent:
		return cloud.Status{Done: true}, false, nil
	case code == http.StatusNotFound && parseError(code, body).Code != "":
		return cloud.Status{Done: true}, true, nil
	case code != http.StatusOK && code != http.StatusCreated:
		failure := parseError(code, body)
		if endsOperation(code) {
			return cloud.Status{Done: true, Err: classify(failure, header)}, false, nil
		}
		return status, false, fmt.Errorf("%s: %w", doing, classify(failure, header))
	}
	if len(body) == 0 {
		return cloud.Status{Done: true}, false, nil
	}
	var answer struct {
		Status string `json:"status"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return status, false, fmt.Errorf("%s: %w: %s", doing, errIncomplete, cloud.Printable(string(body), maxMessage))
	}
	switch strings.ToLower(answer.Status) {
	case "", "succeeded": // a Location answers with the resource itself at the end
		return cloud.Status{Done: true}, false, nil
	case "failed", "canceled":
		failure := parseError(0, body)
		if failure.Code == "" {
			failure.Code = answer.Status
		}
		return cloud.Status{Done: true, Err: classify(failure, nil)}, false, nil
	}
	return cloud.Status{After: retryAfter(header, time.Now())}, false, nil
}
