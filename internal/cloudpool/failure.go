package cloudpool

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/cloudpool/api"
)

// Failure is why a request was not carried out.
type Failure struct {
	Result
	Detail string
	// Err is what went wrong, if something did.
	Err error
}

func (f *Failure) Error() string { return f.Detail }
func (f *Failure) Unwrap() error { return f.Err }

func failure(r Result, format string, a ...any) *Failure {
	return &Failure{Result: r, Detail: fmt.Sprintf(format, a...)}
}

// backendFailure is a pool's server that did not answer, or not well.
func backendFailure(doing string, err error) *Failure {
	return &Failure{Result: BackendAway, Detail: doing + ": " + err.Error(), Err: err}
}

// clusterFailure is an API server that did not answer.
func clusterFailure(doing string, err error) *Failure {
	return &Failure{Result: ClusterAway, Detail: doing + ": " + err.Error(), Err: err}
}

// BusyError is a pool that is being changed in another way.
type BusyError struct {
	// By is the update; nil when it is not known.
	By *Update
	// Holder is the process that works on it; empty when it is this one.
	Holder string
}

func (e *BusyError) Error() string {
	text := "the pool is being updated"
	if e.By != nil {
		text += ": " + e.By.String() + " is under way"
	}
	if e.Holder != "" {
		text += ", by " + e.Holder
	}
	return text
}

// isFinal reports a no of the pool's cloud, or of its server, that asking again does not change. Credentials may be replaced,
// and what is in conflict now need not be later.
func isFinal(err error) bool {
	if cloud.RefusalOf(err) != "" {
		return true
	}
	status := api.AsStatus(err)
	if status == nil || !status.Own {
		return false
	}
	switch status.Code {
	case http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusUnprocessableEntity, http.StatusNotImplemented:
		return true
	}
	return false
}

// resultOf says what an error means to a client.
func resultOf(err error) Result {
	var f *Failure
	switch {
	case errors.As(err, &f):
		return f.Result
	case cloud.IsNotFound(err):
		return NotFound
	case api.AsStatus(err) != nil, cloud.IsThrottled(err), cloud.RefusalOf(err) != "":
		return BackendAway
	}
	return Failed
}

// errAlready is what was asked for being so already.
var errAlready = errors.New("it is so already")
