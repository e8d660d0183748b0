package cloudpool

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"

	"github.com/slipway-dev/slipway/internal/cloudpool/api"
)

// notStarted is the reference server's answer for a pool that is stopped.
const notStarted = "attempt to invoke cloudpool before being started"

// stopped answers for a pool that is not started, and reports that it has.
func (n *Native) stopped(w http.ResponseWriter, r *http.Request, t target) bool {
	if slices.Contains([]action{actConfig, actStart, actStop, actStatus, actOther}, t.action) {
		return false
	}
	started, err := n.isStarted(r.Context())
	switch {
	case err != nil:
		say(w, http.StatusServiceUnavailable, "it is not known whether the pool is started", err.Error())
	case !started:
		say(w, http.StatusInternalServerError, notStarted, "")
	}
	return err != nil || !started
}

// serve answers what is not an update.
func (n *Native) serve(s *Server, w http.ResponseWriter, r *http.Request, t target) {
	handlers := n.reads()
	if r.Method == http.MethodPost {
		handlers = n.writes(s)
	}
	h, allow := handlers[t.action], allowed[t.action]
	switch {
	case allow == "":
		say(w, http.StatusNotFound, "there is nothing here", "want one of the paths of the cloudpool API")
	case r.Method == http.MethodOptions:
		w.Header().Set("Allow", allow)
		w.WriteHeader(http.StatusNoContent)
	case h == nil:
		notAllowed(w, allow)
	default:
		h(w, r)
	}
}

// allowed are the methods of each path, as the reference server has them.
var allowed = map[action]string{
	actConfig: "GET, HEAD, POST, OPTIONS", actSize: "GET, HEAD, POST, OPTIONS",
	actPool: "GET, HEAD, OPTIONS", actStatus: "GET, HEAD, OPTIONS",
	actStart: "POST, OPTIONS", actStop: "POST, OPTIONS", actTerminate: "POST, OPTIONS", actDetach: "POST, OPTIONS",
	actAttach: "POST, OPTIONS", actService: "POST, OPTIONS", actMembership: "POST, OPTIONS",
}

func (n *Native) reads() map[action]http.HandlerFunc {
	return map[action]http.HandlerFunc{
		actPool: func(w http.ResponseWriter, r *http.Request) { answer(w, r, n.cachedPool) },
		actSize: func(w http.ResponseWriter, r *http.Request) { answer(w, r, n.cachedSize) },
		actStatus: func(w http.ResponseWriter, r *http.Request) {
			answer(w, r, func(ctx context.Context) (api.Status, error) {
				started, err := n.isStarted(ctx)
				return api.Status{Started: started, Configured: true}, err
			})
		},
		actConfig: func(w http.ResponseWriter, r *http.Request) { answer(w, r, n.config) },
	}
}

// answer answers with what is read.
func answer[T any](w http.ResponseWriter, r *http.Request, read func(context.Context) (T, error)) {
	object, err := read(r.Context())
	if err != nil {
		failNative(w, "failure to process "+r.Method+" "+r.URL.Path, err)
		return
	}
	show(w, http.StatusOK, object)
}

func (n *Native) writes(s *Server) map[action]http.HandlerFunc {
	with := func(do func(ctx context.Context, raw []byte) error) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, s.o.MaxBody))
			if err == nil {
				err = do(r.Context(), raw)
			}
			if err != nil {
				failNative(w, "failure to process "+r.Method+" "+r.URL.Path, err)
				return
			}
			w.WriteHeader(http.StatusOK)
		}
	}
	return map[action]http.HandlerFunc{
		actStart:  with(func(ctx context.Context, _ []byte) error { return n.setStarted(ctx, true) }),
		actStop:   with(func(ctx context.Context, _ []byte) error { return n.setStarted(ctx, false) }),
		actConfig: with(n.checkConfig),
		actService: with(func(ctx context.Context, raw []byte) error {
			want, err := api.DecodeServiceState(raw)
			if err != nil {
				return err
			}
			return n.setServiceState(ctx, want)
		}),
		actAttach: with(func(ctx context.Context, raw []byte) error {
			want, err := api.DecodeAttach(raw)
			if err != nil {
				return err
			}
			return n.attach(ctx, want.MachineID)
		}),
	}
}

// failNative answers for a cloud or an API server.
func failNative(w http.ResponseWriter, message string, err error) {
	var badRequest *api.BadRequest
	tooLong := new(http.MaxBytesError)
	switch {
	case errors.As(err, &badRequest):
		say(w, http.StatusBadRequest, badRequest.Message, badRequest.Detail)
	case errors.As(err, &tooLong):
		say(w, http.StatusRequestEntityTooLarge, "the body is too long", err.Error())
	default:
		say(w, codeOfNative(err), message, err.Error())
	}
}

// codeOfNative is the code of an error of a provider: the API has 502 for its cloud.
func codeOfNative(err error) int {
	if r := resultOf(err); r != Failed {
		return codeOf(r)
	}
	return http.StatusBadGateway
}
