package httpserver

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"

	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
)

// rejectIfStopped answers a request with an error if the pool is stopped, as the reference server does. It reports
// whether it has answered.
func rejectIfStopped(n *controller.NativePool, w http.ResponseWriter, r *http.Request, t target) (rejected bool) {
	if slices.Contains([]action{actConfig, actStart, actStop, actStatus, actUnknown}, t.action) {
		return false
	}
	started, err := n.IsStarted(r.Context())
	switch {
	case err != nil:
		writeError(w, http.StatusServiceUnavailable, "cannot read whether the pool is started", err.Error())
	case !started:
		writeError(w, http.StatusInternalServerError, "attempt to invoke cloudpool before being started", "")
	}
	return err != nil || !started
}

// serveNativeRequest answers a request to a native pool, except requests that become updates.
func (s *Server) serveNativeRequest(w http.ResponseWriter, r *http.Request, n *controller.NativePool, t target) {
	allow := allowedMethods[t.action]
	switch {
	case allow == "":
		writeError(w, http.StatusNotFound, "path not found", "want a path of the cloudpool API")
		return
	case r.Method == http.MethodOptions:
		w.Header().Set("Allow", allow)
		w.WriteHeader(http.StatusNoContent)
		return
	case !slices.Contains(strings.Split(allow, ", "), r.Method):
		writeMethodNotAllowed(w, allow)
		return
	}
	object, err := executeNativeRequest(w, r, n, t.action, s.opts.MaxBody)
	switch {
	case err != nil:
		writeNativeError(w, "failure to process "+r.Method+" "+r.URL.Path, err)
	case object != nil:
		writeJSON(w, http.StatusOK, object)
	default:
		w.WriteHeader(http.StatusOK)
	}
}

// allowedMethods lists the HTTP methods of each path, as on the reference server.
var allowedMethods = map[action]string{
	actConfig: "GET, HEAD, POST, OPTIONS", actSize: "GET, HEAD, POST, OPTIONS",
	actPool: "GET, HEAD, OPTIONS", actStatus: "GET, HEAD, OPTIONS",
	actStart: "POST, OPTIONS", actStop: "POST, OPTIONS", actTerminate: "POST, OPTIONS", actDetach: "POST, OPTIONS",
	actAttach: "POST, OPTIONS", actServiceState: "POST, OPTIONS", actMembership: "POST, OPTIONS",
}

// executeNativeRequest carries out a request. It returns the object for the answer, or nil if the answer has no body.
func executeNativeRequest(w http.ResponseWriter, r *http.Request, n *controller.NativePool, a action, maxBody int64) (answer any, err error) {
	ctx := r.Context()
	if r.Method != http.MethodPost {
		switch a {
		case actPool:
			return n.CachedPool(ctx)
		case actSize:
			return n.CachedSize(ctx)
		case actConfig:
			return n.Config(ctx)
		}
		started, err := n.IsStarted(ctx)
		return api.Status{Started: started, Configured: true}, err
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return nil, err
	}
	switch a {
	case actConfig:
		return nil, n.CheckConfigUnchanged(ctx, raw)
	case actServiceState:
		return nil, decodeAndApply(ctx, raw, api.DecodeServiceState, n.SetServiceState)
	case actAttach:
		return nil, decodeAndApply(ctx, raw, api.DecodeAttach, n.Attach)
	}
	return nil, n.SetStarted(ctx, a == actStart)
}

func decodeAndApply[T any](ctx context.Context, raw []byte, decode func([]byte) (T, error), apply func(context.Context, T) error) error {
	want, err := decode(raw)
	if err != nil {
		return err
	}
	return apply(ctx, want)
}

// writeNativeError answers with an error of the cloud or the API server.
func writeNativeError(w http.ResponseWriter, message string, err error) {
	var badRequest *api.BadRequestError
	switch {
	case errors.As(err, &badRequest):
		writeError(w, http.StatusBadRequest, badRequest.Message, badRequest.Detail)
	case isBodyTooLarge(err):
		writeError(w, http.StatusRequestEntityTooLarge, "the body is too large", err.Error())
	default:
		code := http.StatusBadGateway // the cloudpool API uses 502 for errors of the pool's cloud
		if r := controller.ToResult(err); r != controller.Failed {
			code = toStatusCode(r)
		}
		writeError(w, code, message, err.Error())
	}
}
