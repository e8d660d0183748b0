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

// stopped answers for a pool that is not started, as the reference server does, and reports that it has.
func stopped(n *controller.Native, w http.ResponseWriter, r *http.Request, t target) bool {
	if slices.Contains([]action{actConfig, actStart, actStop, actStatus, actOther}, t.action) {
		return false
	}
	started, err := n.IsStarted(r.Context())
	switch {
	case err != nil:
		say(w, http.StatusServiceUnavailable, "it is not known whether the pool is started", err.Error())
	case !started:
		say(w, http.StatusInternalServerError, "attempt to invoke cloudpool before being started", "")
	}
	return err != nil || !started
}

// serveNative answers what is not an update.
func (s *Server) serveNative(w http.ResponseWriter, r *http.Request, n *controller.Native, t target) {
	allow := allowed[t.action]
	switch {
	case allow == "":
		say(w, http.StatusNotFound, "there is nothing here", "want one of the paths of the cloudpool API")
		return
	case r.Method == http.MethodOptions:
		w.Header().Set("Allow", allow)
		w.WriteHeader(http.StatusNoContent)
		return
	case !slices.Contains(strings.Split(allow, ", "), r.Method):
		notAllowed(w, allow)
		return
	}
	object, err := answerNative(w, r, n, t.action, s.o.MaxBody)
	switch {
	case err != nil:
		failNative(w, "failure to process "+r.Method+" "+r.URL.Path, err)
	case object != nil:
		show(w, http.StatusOK, object)
	default:
		w.WriteHeader(http.StatusOK)
	}
}

// allowed are the methods of each path, as the reference server has them.
var allowed = map[action]string{
	actConfig: "GET, HEAD, POST, OPTIONS", actSize: "GET, HEAD, POST, OPTIONS",
	actPool: "GET, HEAD, OPTIONS", actStatus: "GET, HEAD, OPTIONS",
	actStart: "POST, OPTIONS", actStop: "POST, OPTIONS", actTerminate: "POST, OPTIONS", actDetach: "POST, OPTIONS",
	actAttach: "POST, OPTIONS", actService: "POST, OPTIONS", actMembership: "POST, OPTIONS",
}

// answerNative does what a request asks for, and returns what to show.
func answerNative(w http.ResponseWriter, r *http.Request, n *controller.Native, a action, most int64) (any, error) {
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
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if err != nil {
		return nil, err
	}
	switch a {
	case actConfig:
		return nil, n.CheckConfig(ctx, raw)
	case actService:
		return nil, decoded(ctx, raw, api.DecodeServiceState, n.SetServiceState)
	case actAttach:
		return nil, decoded(ctx, raw, api.DecodeAttach, n.Attach)
	}
	return nil, n.SetStarted(ctx, a == actStart)
}

// decoded does what a body asks for.
func decoded[T any](ctx context.Context, raw []byte, decode func([]byte) (T, error), do func(context.Context, T) error) error {
	want, err := decode(raw)
	if err != nil {
		return err
	}
	return do(ctx, want)
}

// failNative answers for a cloud or an API server.
func failNative(w http.ResponseWriter, message string, err error) {
	var badRequest *api.BadRequest
	switch {
	case errors.As(err, &badRequest):
		say(w, http.StatusBadRequest, badRequest.Message, badRequest.Detail)
	case isTooLong(err):
		say(w, http.StatusRequestEntityTooLarge, "the body is too long", err.Error())
	default:
		code := http.StatusBadGateway // the API has it for the pool's cloud
		if r := controller.ResultOf(err); r != controller.Failed {
			code = codeOf(r)
		}
		say(w, code, message, err.Error())
	}
}
