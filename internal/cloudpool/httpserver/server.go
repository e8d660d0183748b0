// Package httpserver serves the cloudpool REST API. It forwards requests that remove no machine and passes the others to
// package controller.
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	api "github.com/slipway-dev/slipway/internal/cloud/cloudpool/wire"
	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
	"github.com/slipway-dev/slipway/internal/elapsed"
)

// ServedPool is one pool that a Server serves.
type ServedPool struct {
	Name    string
	Updater *controller.Updater
	// URL and Transport are the destination of forwarded requests. They are set for a pool with a server.
	URL       *url.URL
	Transport http.RoundTripper
	// Native answers requests that are not updates. It is set for a pool without a server.
	Native *controller.NativePool

	proxy *httputil.ReverseProxy
}

// ServerOptions configures a Server.
type ServerOptions struct {
	// StrictCompat answers failures like kubeaware-cloudpool-proxy, always with 500.
	StrictCompat bool
	// RefusedActions are actions that are refused instead of forwarded: attach, config, start, stop, detach.
	RefusedActions []string
	// MaxBody is the maximum body size of a forwarded request in bytes; 0 means 1 MiB.
	MaxBody int64
	// BackendTimeout limits a forwarded request including its answer, and the time a client has to read any answer; 0 means 5
	// minutes.
	BackendTimeout time.Duration
	// LoopbackOnly means that the API listens on the loopback interface and does not authenticate clients.
	LoopbackOnly bool
	// ForwardCredentials forwards the clients' credentials to the pool's server.
	ForwardCredentials bool
	// AuthorizeRequest authorizes a request and returns the client's name. If it denies the request, it answers it and returns false.
	// verb is get or update. If nil, all requests are allowed.
	AuthorizeRequest func(w http.ResponseWriter, r *http.Request, pool, verb string) (user string, ok bool)
	Metrics          *controller.Metrics
	Log              *slog.Logger
}

const (
	// DefaultMaxBody is the default of ServerOptions.MaxBody, in bytes.
	DefaultMaxBody = 1 << 20
	// maxUpdateBody is the longest body of an update, in bytes. The body contains little more than a machine ID.
	maxUpdateBody         = 64 << 10
	DefaultBackendTimeout = 5 * time.Minute
)

// Server serves pools over HTTP. It implements http.Handler.
type Server struct {
	opts   ServerOptions
	fronts []*ServedPool
	// rootPool is the pool that is served at the root path; nil if there are several.
	rootPool    *ServedPool
	buffers     bufferPool
	originCheck http.CrossOriginProtection
	// waitContext ends when no client may wait for an update any longer.
	waitContext context.Context
	endWaits    context.CancelCauseFunc
}

// NewServer returns a server of pools. A single pool is served at the root path and under /cloudpools/{name}. Several pools
// are served only under their names.
func NewServer(o ServerOptions, fronts ...*ServedPool) *Server {
	if o.MaxBody <= 0 {
		o.MaxBody = DefaultMaxBody
	}
	if o.BackendTimeout <= 0 {
		o.BackendTimeout = DefaultBackendTimeout
	}
	s := &Server{opts: o, fronts: fronts}
	s.waitContext, s.endWaits = context.WithCancelCause(context.Background())
	if len(fronts) == 1 {
		s.rootPool = fronts[0]
	}
	for _, f := range fronts {
		if f.URL != nil {
			f.proxy = s.newProxy(f)
		}
	}
	return s
}

// CancelWaits answers all clients that wait for an update, and all that would wait later. The updates continue. It may
// be called at any time and repeatedly.
func (s *Server) CancelWaits() { s.endWaits(errShuttingDown) }

// newWaitContext returns a context that ends with ctx or with a call of CancelWaits.
func (s *Server) newWaitContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.waitContext, func() { cancel(context.Cause(s.waitContext)) })
	return ctx, func() { stop(); cancel(nil) }
}

// slipwayPrefix is the prefix of all paths that are an addition of Slipway to the cloudpool API.
const slipwayPrefix = "/slipway/v1/"

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seen := &responseRecorder{ResponseWriter: w, readTimeout: s.opts.BackendTimeout}
	pool, handling := s.serveRequest(seen, r)
	s.opts.Metrics.CountRequest(pool, handling, strconv.Itoa(max(seen.code, http.StatusOK)))
}

// responseRecorder records the status code of an answer. It also limits how long the client may take to read the
// answer.
type responseRecorder struct {
	http.ResponseWriter
	readTimeout time.Duration
	code        int
}

func (r *responseRecorder) WriteHeader(code int) {
	if r.code == 0 && code >= 200 {
		r.code = code
		r.setWriteDeadline(time.Now().Add(r.readTimeout))
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *responseRecorder) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.WriteHeader(http.StatusOK)
	}
	return r.ResponseWriter.Write(p)
}

// setWriteDeadline sets the write deadline of the connection. The http.Server clears it after the answer. setWriteDeadline ignores
// writers that have no write deadline, such as those in tests.
func (r *responseRecorder) setWriteDeadline(t time.Time) {
	_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(t)
}

// Unwrap gives http.ResponseController access to the wrapped writer.
func (r *responseRecorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// serveRequest answers a request. It returns the values of the metric labels pool and handling.
func (s *Server) serveRequest(w http.ResponseWriter, r *http.Request) (pool, handling string) {
	if err := s.checkOrigin(r); err != nil {
		writeError(w, http.StatusForbidden, "cross-site requests must not change a pool", err.Error())
		return "", "refused"
	}
	t := parsePath(r.URL.EscapedPath())
	if strings.HasPrefix(r.URL.Path, slipwayPrefix) {
		return s.serveSlipwayAPI(w, r)
	}
	if t.pool == "" && t.action == actUnknown && slices.Equal(normalizeSegments(r.URL.EscapedPath()), []string{multiSegment}) {
		s.writePoolURLs(w, r)
		return "", "list"
	}
	verb := "update"
	if isReadOnly(r.Method) {
		verb = "get"
	}
	f := s.findPool(t)
	if f == nil {
		return s.writePoolNotFound(w, r, t.pool, verb)
	}
	user, ok := s.authorize(w, r, f.Name, verb)
	if !ok {
		return f.Name, "denied"
	}
	return f.Name, s.servePoolRequest(w, r, f, t, verb, user)
}

func (s *Server) authorize(w http.ResponseWriter, r *http.Request, pool, verb string) (user string, allowed bool) {
	if s.opts.AuthorizeRequest == nil {
		return "", true
	}
	return s.opts.AuthorizeRequest(w, r, pool, verb)
}

func (s *Server) findPool(t target) *ServedPool {
	if t.pool == "" {
		return s.rootPool
	}
	for _, f := range s.fronts {
		if strings.EqualFold(f.Name, t.pool) {
			return f
		}
	}
	return nil
}

// writePoolNotFound answers a request to a pool that is not served. If clients are authorized, the client needs a right
// to the requested name. So a client cannot find out the names of other pools.
func (s *Server) writePoolNotFound(w http.ResponseWriter, r *http.Request, name, verb string) (pool, handling string) {
	if name != "" {
		if _, ok := s.authorize(w, r, name, verb); !ok {
			return "", "denied"
		}
	}
	writeError(w, http.StatusNotFound, "pool not found", s.describePoolPaths())
	return "", "unknown"
}

func (s *Server) describePoolPaths() string {
	if s.opts.AuthorizeRequest != nil {
		return "want /" + multiSegment + "/NAME"
	}
	var names []string
	for _, f := range s.fronts {
		names = append(names, "/"+multiSegment+"/"+f.Name)
	}
	return "want one of " + strings.Join(names, ", ")
}

// writePoolURLs lists the pools that the client may read. Like writePoolNotFound, it tells no client the names of other pools.
func (s *Server) writePoolURLs(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		writeMethodNotAllowed(w, "GET")
		return
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	urls := []string{}
	for _, f := range s.fronts {
		denial := deniedAnswer{header: http.Header{}}
		if _, ok := s.authorize(&denial, r, f.Name, "get"); !ok && denial.code != http.StatusForbidden {
			denial.writeTo(w) // the client is unknown, or the API server does not answer
			return
		} else if !ok {
			continue
		}
		urls = append(urls, scheme+"://"+r.Host+"/"+multiSegment+"/"+f.Name)
	}
	writeJSON(w, http.StatusOK, urls)
}

// deniedAnswer is an http.ResponseWriter that keeps the answer to a request that was denied.
type deniedAnswer struct {
	header http.Header
	code   int
	body   []byte
}

// Header implements http.ResponseWriter.
func (d *deniedAnswer) Header() http.Header { return d.header }

// WriteHeader implements http.ResponseWriter.
func (d *deniedAnswer) WriteHeader(code int) { d.code = code }

// Write implements http.ResponseWriter.
func (d *deniedAnswer) Write(p []byte) (int, error) {
	d.body = append(d.body, p...)
	return len(p), nil
}

func (d *deniedAnswer) writeTo(w http.ResponseWriter) {
	maps.Copy(w.Header(), d.header)
	w.WriteHeader(d.code)
	_, _ = w.Write(d.body)
}

func writeMethodNotAllowed(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	writeError(w, http.StatusMethodNotAllowed, "method not allowed", "want "+allow)
}

// rejectIfGroupUnread answers 503 if the pool's NodeGroup was not read yet. It reports whether it has answered.
func rejectIfGroupUnread(w http.ResponseWriter, f *ServedPool) (rejected bool) {
	if f.Native == nil || !f.Native.IsUnread() {
		return false
	}
	w.Header().Set("Retry-After", strconv.Itoa(retrySeconds))
	writeError(w, http.StatusServiceUnavailable, "NodeGroup "+f.Name+" has not been read yet", controller.NotSyncedError{}.Error())
	return true
}

// servePoolRequest answers a request to a pool. It returns the value of the metric label handling.
func (s *Server) servePoolRequest(w http.ResponseWriter, r *http.Request, f *ServedPool, t target, verb, user string) (handling string) {
	if s.rejectForbidden(w, r, f, t) {
		return "refused"
	}
	if verb == "get" {
		return s.forwardOrServeNative(w, r, f, t)
	}
	if !slices.Contains([]action{actSize, actTerminate, actDetach, actMembership}, t.action) {
		if hazard := shrinkRisks[t.action]; hazard != "" {
			s.opts.Log.Warn("forwarding a request after which the pool's server may delete machines", "pool", f.Name, "action", t.action,
				"reason", hazard, "user", user)
		} else if t.action == actUnknown && f.proxy != nil {
			s.opts.Log.Warn("forwarding a request with an unknown effect", "pool", f.Name, "method", r.Method,
				"path", r.URL.Path, "user", user)
		}
		return s.forwardOrServeNative(w, r, f, t)
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxUpdateBody))
	switch {
	case isBodyTooLarge(err):
		writeError(w, http.StatusRequestEntityTooLarge, "the body is too large", fmt.Sprintf("want at most %d bytes", maxUpdateBody))
		return "refused"
	case err != nil:
		writeError(w, http.StatusBadRequest, "cannot read the body", err.Error())
		return "refused"
	}
	s.decodeAndRouteUpdate(w, r, f, t.action, raw, user)
	return "update"
}

// rejectForbidden answers a request with an error if its operation is not allowed on this pool. It reports whether it
// has answered.
func (s *Server) rejectForbidden(w http.ResponseWriter, r *http.Request, f *ServedPool, t target) (rejected bool) {
	var ambiguous error
	if t.action == actUnknown {
		ambiguous = checkUnambiguousPath(r.Method, r.URL.EscapedPath())
	}
	switch {
	case rejectIfGroupUnread(w, f), f.Native != nil && rejectIfStopped(f.Native, w, r, t):
	case ambiguous != nil:
		writeError(w, http.StatusBadRequest, "the path is ambiguous", ambiguous.Error())
	case isReadOnly(r.Method):
		return false
	case t.action == actPoolRoot: // a server of several pools would delete the pool
		writeMethodNotAllowed(w, "GET")
	case r.Method == http.MethodConnect, r.Method == http.MethodTrace, r.Method != http.MethodPost && t.action != actUnknown:
		writeMethodNotAllowed(w, "GET, POST") // a server that treats the method as POST would bypass all checks
	case slices.Contains(s.opts.RefusedActions, string(t.action)):
		writeError(w, http.StatusForbidden, "the action "+string(t.action)+" is refused", "this server runs with --refuse="+strings.Join(s.opts.RefusedActions, ","))
	default:
		return false
	}
	return true
}

// shrinkRisks maps forwarded operations to the reason why the pool's server may delete machines after them.
var shrinkRisks = map[action]string{
	actAttach: "the pool counts one more machine and deletes one of its choice if that exceeds its desired size",
	actConfig: "the pool restarts with another configuration and may change its size",
	actStart:  "the pool starts to apply a desired size that may be smaller than its actual size",
}

// decodeAndRouteUpdate decodes the change in a request body, carries it out and answers the client.
func (s *Server) decodeAndRouteUpdate(w http.ResponseWriter, r *http.Request, f *ServedPool, a action, raw []byte, user string) {
	up, err := decodeUpdate(a, raw)
	up.RequestedBy = user
	judge, removes := f.Updater.CheckCanRemoveMachine, up.Kind == controller.Terminate || up.Kind == controller.Dispose
	if err == nil && up.Kind == controller.SetSize {
		judge = f.Updater.CheckCanShrink
		removes, err = f.Updater.WouldShrink(r.Context(), up.DesiredSize)
	}
	switch {
	case err != nil:
		s.writeFailure(w, up.Kind, "", err)
	case removes:
		s.submitAndAnswer(w, r, f, up, judge)
	default:
		s.forwardNonRemovingUpdate(w, r, f, up)
	}
}

// decodeUpdate decodes a request body to an update. A request that makes a machine disposable becomes a termination
// with a replacement. A request that detaches a machine does not terminate it.
func decodeUpdate(a action, raw []byte) (controller.Update, error) {
	switch a {
	case actSize:
		want, err := api.DecodeSetDesiredSize(raw)
		return controller.Update{Kind: controller.SetSize, DesiredSize: want.DesiredSize}, err
	case actTerminate:
		want, err := api.DecodeTerminate(raw)
		return controller.Update{Kind: controller.Terminate, MachineID: want.MachineID, Decrement: want.Decrement}, err
	case actDetach:
		want, err := api.DecodeDetach(raw)
		return controller.Update{Kind: controller.DetachMachine, MachineID: want.MachineID, Decrement: want.Decrement}, err
	}
	want, err := api.DecodeMembershipStatus(raw)
	if want.MembershipStatus.IsDisposable() {
		return controller.Update{Kind: controller.Dispose, MachineID: want.MachineID}, err
	}
	membership := v1alpha1.PoolMembership(want.MembershipStatus)
	return controller.Update{Kind: controller.ChangeMembership, MachineID: want.MachineID, Membership: &membership}, err
}

// forwardNonRemovingUpdate forwards a change that removes no machine. It waits until no other update of the pool is
// unfinished. While the API server is unavailable, no replica works on updates, so it forwards the change at once.
func (s *Server) forwardNonRemovingUpdate(w http.ResponseWriter, r *http.Request, f *ServedPool, up controller.Update) {
	ctx, cancel := s.newWaitContext(r.Context())
	defer cancel()
	result, err := s.submitUpdate(ctx, f, up, nil)
	switch {
	case errors.Is(err, controller.ErrUpdatesUnreadable) && ctx.Err() == nil:
		s.opts.Log.Warn("changing the pool although its PoolUpdates cannot be read", "pool", f.Name, "err", err)
		result = f.Updater.Forward(r.Context(), &up)
	case err != nil:
		s.writeFailure(w, up.Kind, up.MachineID, err)
		return
	default:
		result = s.waitForUpdateOrAnswer(ctx, w, f, result)
	}
	if result != nil {
		s.writeServerAnswer(w, result)
	}
}

// submitAndAnswer submits an update and answers the client when the update has finished. If the client prefers an
// asynchronous answer, it answers at once.
func (s *Server) submitAndAnswer(w http.ResponseWriter, r *http.Request, f *ServedPool, up controller.Update, precheck func(context.Context, *controller.Update) error) {
	ctx, cancel := s.newWaitContext(r.Context())
	defer cancel()
	// An accepted update continues if the client disconnects. Until then the request can be cancelled.
	accepted, err := s.submitUpdate(ctx, f, up, precheck)
	switch {
	case errors.Is(err, controller.ErrAlreadyTerminating):
		w.WriteHeader(http.StatusOK)
		return
	case err != nil && controller.ToResult(err) == controller.NotFound && up.Kind != controller.SetSize:
		if past, pastErr := f.Updater.FindCompletedRemoval(r.Context(), &up); pastErr == nil && past != nil && !s.opts.StrictCompat {
			s.writeOutcome(w, past) // a repeated request for a completed removal
			return
		}
		if s.opts.StrictCompat && f.Updater.HasNodeOfMachine(up.MachineID) {
			err = &controller.Failure{Result: controller.NotFound, Detail: err.Error(), Err: errNodeWithoutMachine}
		}
		s.writeFailure(w, up.Kind, up.MachineID, err)
		return
	case err != nil:
		s.writeFailure(w, up.Kind, up.MachineID, err)
		return
	}
	if prefersAsync(r) {
		w.Header().Set("Preference-Applied", "respond-async")
		w.Header().Set("Location", updatePath(f.Name, accepted.ID))
		w.Header().Set("Slipway-Update", accepted.ID)
		writeJSON(w, http.StatusAccepted, accepted)
		return
	}
	if result := s.waitForUpdateOrAnswer(ctx, w, f, accepted); result != nil {
		s.writeOutcome(w, result)
	}
}

// waitForUpdateOrAnswer waits for an update and returns it with its outcome. If the wait ends before, for example at
// shutdown, it answers the client and returns nil.
func (s *Server) waitForUpdateOrAnswer(ctx context.Context, w http.ResponseWriter, f *ServedPool, up *controller.Update) *controller.Update {
	result, err := up.WaitForOutcome(ctx)
	if err != nil {
		s.opts.Log.Info("a client stopped waiting; its update continues", "pool", f.Name, "update", up.ID)
		s.writeFailure(w, up.Kind, up.MachineID, controller.NewFailuref(controller.ClusterUnavailable, "update %s continues: GET %s for its result",
			up.ID, updatePath(f.Name, up.ID)))
		return nil
	}
	return result
}

// queuePollInterval is the pause between two checks whether the pool has an unfinished update. In strict compatibility
// mode, a client waits for that.
const queuePollInterval = 500 * time.Millisecond

// submitUpdate submits an update. In strict compatibility mode it waits until no other update is unfinished, because
// kubeaware-cloudpool-proxy never answered 429.
func (s *Server) submitUpdate(ctx context.Context, f *ServedPool, up controller.Update, precheck func(context.Context, *controller.Update) error) (*controller.Update, error) {
	for {
		accepted, err := f.Updater.SubmitOrFindEqual(ctx, up, precheck)
		var busy *controller.BusyError
		if !s.opts.StrictCompat || !errors.As(err, &busy) {
			return accepted, err
		}
		if !elapsed.Sleep(ctx, queuePollInterval) {
			return nil, context.Cause(ctx)
		}
	}
}

// prefersAsync reports whether the request has the preference respond-async (RFC 7240).
func prefersAsync(r *http.Request) bool {
	for _, line := range r.Header.Values("Prefer") {
		for preference := range strings.SplitSeq(line, ",") {
			name, _, _ := strings.Cut(strings.TrimSpace(preference), ";")
			if strings.EqualFold(strings.TrimSpace(name), "respond-async") {
				return true
			}
		}
	}
	return false
}

func updatePath(pool, id string) string { return slipwayPrefix + "pools/" + pool + "/updates/" + id }

// serveSlipwayAPI answers requests for the status of an update and for the plan of a size.
func (s *Server) serveSlipwayAPI(w http.ResponseWriter, r *http.Request) (pool, handling string) {
	segments := strings.Split(strings.TrimPrefix(r.URL.Path, slipwayPrefix), "/")
	if len(segments) < 3 || segments[0] != "pools" {
		writeError(w, http.StatusNotFound, "path not found", "want "+updatePath("POOL", "ID")+" or "+slipwayPrefix+"pools/POOL/plan?desiredSize=N")
		return "", "unknown"
	}
	f := s.findPool(target{pool: segments[1]})
	switch {
	case f == nil:
		return s.writePoolNotFound(w, r, segments[1], "get")
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		writeMethodNotAllowed(w, "GET")
		return f.Name, "refused"
	}
	if _, ok := s.authorize(w, r, f.Name, "get"); !ok {
		return f.Name, "denied"
	}
	switch {
	case len(segments) == 4 && segments[2] == "updates":
		s.writeUpdateStatus(w, r, f, segments[3])
	case len(segments) == 3 && segments[2] == "plan":
		s.writePlan(w, r, f)
	default:
		writeError(w, http.StatusNotFound, "path not found", "want updates/ID or plan?desiredSize=N")
	}
	return f.Name, "own"
}

func (s *Server) writeUpdateStatus(w http.ResponseWriter, r *http.Request, f *ServedPool, id string) {
	up, err := f.Updater.FindUpdate(r.Context(), id)
	switch {
	case err != nil:
		writeError(w, http.StatusServiceUnavailable, "cannot read the update", err.Error())
	case up == nil:
		writeError(w, http.StatusNotFound, "update not found", fmt.Sprintf("the latest %d finished updates of a pool are kept", controller.MaxFinishedUpdates))
	default:
		writeJSON(w, http.StatusOK, up)
	}
}

func (s *Server) writePlan(w http.ResponseWriter, r *http.Request, f *ServedPool) {
	if rejectIfGroupUnread(w, f) {
		return
	}
	n, err := strconv.Atoi(r.URL.Query().Get("desiredSize"))
	if err != nil || n < 0 {
		writeError(w, http.StatusBadRequest, "desiredSize is missing or not a number", "want ?desiredSize=N with N >= 0")
		return
	}
	d, err := f.Updater.PlanShrinkTo(r.Context(), n)
	if err != nil {
		writeError(w, toStatusCode(controller.ToResult(err)), "cannot plan the size", err.Error())
		return
	}
	writeJSON(w, http.StatusOK, d)
}
