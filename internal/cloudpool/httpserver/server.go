// Package httpserver serves the cloudpool REST API: it passes on what takes no machine away, and hands package controller the rest.
package httpserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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

// Front is one pool that a Server serves.
type Front struct {
	Name    string
	Updater *controller.Updater
	// URL is where requests are passed on to, and Transport how; for a pool that has a server of its own.
	URL       *url.URL
	Transport http.RoundTripper
	// Native answers what is not an update; for a pool that has no server of its own.
	Native *controller.Native

	proxy *httputil.ReverseProxy
}

// ServerOptions are what a Server is told.
type ServerOptions struct {
	// StrictCompat has failures answered as kubeaware-cloudpool-proxy answered them: 500, whatever they are.
	StrictCompat bool
	// Refuse are actions that are not passed on: attach, config, start, stop, detach.
	Refuse []string
	// MaxBody is the largest body of a request, in bytes; 0 is 1 MiB.
	MaxBody int64
	// BackendTimeout limits a request that is passed on, to the last byte of its answer, and how long a client may take to read any
	// answer; 0 is 5 minutes.
	BackendTimeout time.Duration
	// Local says that this machine alone is served, and nobody asked who he is.
	Local bool
	// KeepCredentials passes on the credentials of clients, which a server without any of ours may want.
	KeepCredentials bool
	// Identify returns the client's name, or answers the request itself and returns false. verb is get or update. nil allows all.
	Identify func(w http.ResponseWriter, r *http.Request, pool, verb string) (user string, ok bool)
	Metrics  *controller.Metrics
	Log      *slog.Logger
}

const (
	// DefaultMaxBody is the largest body that is passed on, in bytes, and DefaultBackendTimeout how long one request may take.
	DefaultMaxBody = 1 << 20
	// maxUpdateBody bounds the body of what is not passed on, in bytes: a machine's ID and some words.
	maxUpdateBody         = 64 << 10
	DefaultBackendTimeout = 5 * time.Minute
)

// Server serves pools over HTTP. It implements http.Handler.
type Server struct {
	o      ServerOptions
	fronts []*Front
	// root is the pool that is served at the root; nil when there are several.
	root    *Front
	buffers buffers
	origins http.CrossOriginProtection
	// waits ends when nobody is to wait for an update any longer.
	waits    context.Context
	endWaits context.CancelCauseFunc
}

// NewServer makes a server of one pool, served at the root and under /cloudpools/{name}, or of several, served under
// their names alone.
func NewServer(o ServerOptions, fronts ...*Front) *Server {
	if o.MaxBody <= 0 {
		o.MaxBody = DefaultMaxBody
	}
	if o.BackendTimeout <= 0 {
		o.BackendTimeout = DefaultBackendTimeout
	}
	s := &Server{o: o, fronts: fronts}
	s.waits, s.endWaits = context.WithCancelCause(context.Background())
	if len(fronts) == 1 {
		s.root = fronts[0]
	}
	for _, f := range fronts {
		if f.URL != nil {
			f.proxy = s.newProxy(f)
		}
	}
	return s
}

// EndWaits has those answered who wait for an update, and whoever would from now on: it goes on without them. It may be
// called at any time, and more than once.
func (s *Server) EndWaits() { s.endWaits(errEnding) }

// waiting is a request's context for as long as an update may be waited for.
func (s *Server) waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.waits, func() { cancel(context.Cause(s.waits)) })
	return ctx, func() { stop(); cancel(nil) }
}

// ownPrefix begins the paths of what the cloudpool API does not have.
const ownPrefix = "/slipway/v1/"

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seen := &recorder{ResponseWriter: w, within: s.o.BackendTimeout}
	seen.until(time.Time{}) // what an earlier answer over the same connection had
	pool, handling := s.serve(seen, r)
	s.o.Metrics.Request(pool, handling, strconv.Itoa(max(seen.code, http.StatusOK)))
}

// recorder notes the code of an answer, and bounds the time that the client may take to read it.
type recorder struct {
	http.ResponseWriter
	within time.Duration
	code   int
}

func (r *recorder) WriteHeader(code int) {
	if r.code == 0 && code >= 200 {
		r.code = code
		r.until(time.Now().Add(r.within))
	}
	r.ResponseWriter.WriteHeader(code)
}

func (r *recorder) Write(p []byte) (int, error) {
	if r.code == 0 {
		r.WriteHeader(http.StatusOK)
	}
	return r.ResponseWriter.Write(p)
}

// until ends the time in which the client may read. What is below a test's may know none.
func (r *recorder) until(t time.Time) {
	_ = http.NewResponseController(r.ResponseWriter).SetWriteDeadline(t)
}

// Unwrap lets http.ResponseController reach what is below.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// serve answers, and says for whom and how.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) (pool, handling string) {
	if err := s.foreign(r); err != nil {
		say(w, http.StatusForbidden, "a page of another site changes nothing here", err.Error())
		return "", "refused"
	}
	t := readPath(r.URL.EscapedPath())
	if strings.HasPrefix(r.URL.Path, ownPrefix) {
		return s.serveOwn(w, r)
	}
	if t.pool == "" && t.action == actOther && slices.Equal(plainSegments(r.URL.EscapedPath()), []string{multiSegment}) {
		s.list(w, r)
		return "", "list"
	}
	verb := "update"
	if reads(r.Method) {
		verb = "get"
	}
	f := s.front(t)
	if f == nil {
		return s.noPool(w, r, t.pool, verb)
	}
	user, ok := s.authorize(w, r, f.Name, verb)
	if !ok {
		return f.Name, "denied"
	}
	return f.Name, s.handle(w, r, f, t, verb, user)
}

func (s *Server) authorize(w http.ResponseWriter, r *http.Request, pool, verb string) (string, bool) {
	if s.o.Identify == nil {
		return "", true
	}
	return s.o.Identify(w, r, pool, verb)
}

func (s *Server) front(t target) *Front {
	if t.pool == "" {
		return s.root
	}
	for _, f := range s.fronts {
		if strings.EqualFold(f.Name, t.pool) {
			return f
		}
	}
	return nil
}

// noPool answers for a pool that is not served. Who has to show a right to a pool has to show it to this one too, and is not
// told the others' names.
func (s *Server) noPool(w http.ResponseWriter, r *http.Request, name, verb string) (pool, handling string) {
	if name != "" {
		if _, ok := s.authorize(w, r, name, verb); !ok {
			return "", "denied"
		}
	}
	say(w, http.StatusNotFound, "there is no such pool", s.pools())
	return "", "unknown"
}

func (s *Server) pools() string {
	if s.o.Identify != nil {
		return "want /" + multiSegment + "/NAME"
	}
	var names []string
	for _, f := range s.fronts {
		names = append(names, "/"+multiSegment+"/"+f.Name)
	}
	return "want one of " + strings.Join(names, ", ")
}

func (s *Server) list(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		notAllowed(w, "GET")
		return
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	urls := []string{}
	for _, f := range s.fronts {
		if _, ok := s.authorize(w, r, f.Name, "get"); !ok {
			return
		}
		urls = append(urls, scheme+"://"+r.Host+"/"+multiSegment+"/"+f.Name)
	}
	show(w, http.StatusOK, urls)
}

func notAllowed(w http.ResponseWriter, allow string) {
	w.Header().Set("Allow", allow)
	say(w, http.StatusMethodNotAllowed, "the method is not allowed here", "want "+allow)
}

// refuseUnread answers for a NodeGroup that was not read yet, of which no cloud is known.
func refuseUnread(w http.ResponseWriter, f *Front) bool {
	if f.Native == nil || !f.Native.Unread() {
		return false
	}
	w.Header().Set("Retry-After", strconv.Itoa(retrySeconds))
	say(w, http.StatusServiceUnavailable, "the NodeGroup "+f.Name+" has not been read yet", controller.UnreadError{}.Error())
	return true
}

// handle answers a request to a pool, and says how.
func (s *Server) handle(w http.ResponseWriter, r *http.Request, f *Front, t target, verb, user string) string {
	if s.refuses(w, r, f, t) {
		return "refused"
	}
	if verb == "get" {
		return s.pass(w, r, f, t)
	}
	if !slices.Contains([]action{actSize, actTerminate, actDetach, actMembership}, t.action) {
		if hazard := hazards[t.action]; hazard != "" {
			s.o.Log.Warn("a request is passed on that may have the pool take machines away by itself", "pool", f.Name, "action", t.action,
				"because", hazard, "user", user)
		} else if t.action == actOther && f.proxy != nil {
			s.o.Log.Warn("a request is passed on of which it is not known what it does", "pool", f.Name, "method", r.Method,
				"path", r.URL.Path, "user", user)
		}
		return s.pass(w, r, f, t)
	}
	raw, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxUpdateBody))
	switch {
	case isTooLong(err):
		say(w, http.StatusRequestEntityTooLarge, "the body is too long", fmt.Sprintf("want at most %d bytes", maxUpdateBody))
		return "refused"
	case err != nil:
		say(w, http.StatusBadRequest, "the body cannot be read", err.Error())
		return "refused"
	}
	s.carryOut(w, r, f, t.action, raw, user)
	return "update"
}

// refuses answers a request that is not for this pool, or not allowed here, and reports whether it has.
func (s *Server) refuses(w http.ResponseWriter, r *http.Request, f *Front, t target) bool {
	var ambiguous error
	if t.action == actOther {
		ambiguous = checkPath(r.Method, r.URL.EscapedPath())
	}
	switch {
	case refuseUnread(w, f), f.Native != nil && stopped(f.Native, w, r, t):
	case ambiguous != nil:
		say(w, http.StatusBadRequest, "the path is not one that all servers read alike", ambiguous.Error())
	case reads(r.Method):
		return false
	case t.action == actItself: // a server of several would delete the pool
		notAllowed(w, "GET")
	case r.Method == http.MethodConnect, r.Method == http.MethodTrace, r.Method != http.MethodPost && t.action != actOther:
		notAllowed(w, "GET, POST") // a server that took it for a POST would be reached past all checks
	case slices.Contains(s.o.Refuse, string(t.action)):
		say(w, http.StatusForbidden, "this pool's proxy does not pass on "+string(t.action), "it was started with --refuse="+strings.Join(s.o.Refuse, ","))
	default:
		return false
	}
	return true
}

// hazards are the actions that are passed on, and that may lead to a smaller pool by the server's own doing.
var hazards = map[action]string{
	actAttach: "the pool counts one more machine, and removes one of its choice where that is too many",
	actConfig: "the pool is stopped and started anew with another configuration, and may come to another size",
	actStart:  "the pool begins to go by a desired size that may be smaller than it is",
}

// carryOut does what a body asks for, and answers.
func (s *Server) carryOut(w http.ResponseWriter, r *http.Request, f *Front, a action, raw []byte, user string) {
	up, err := decode(a, raw)
	up.RequestedBy = user
	judge, takes := f.Updater.JudgeMachine, up.Kind == controller.Terminate || up.Kind == controller.Dispose
	if err == nil && up.Kind == controller.SetSize {
		judge = f.Updater.JudgeSize
		takes, err = f.Updater.Shrinks(r.Context(), up.DesiredSize)
	}
	switch {
	case err != nil:
		s.refuse(w, up.Kind, "", err)
	case takes:
		s.update(w, r, f, up, judge)
	default:
		s.change(w, r, f, up)
	}
}

// decode reads what a body asks for. A machine that becomes disposable is terminated and replaced. A detached one keeps running.
func decode(a action, raw []byte) (controller.Update, error) {
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
	if want.MembershipStatus.Disposable() {
		return controller.Update{Kind: controller.Dispose, MachineID: want.MachineID}, err
	}
	membership := v1alpha1.PoolMembership(want.MembershipStatus)
	return controller.Update{Kind: controller.ChangeMembership, MachineID: want.MachineID, Membership: &membership}, err
}

// change does what removes no machine, while no other update changes the pool. While the API server is away no replica works on an
// update, and the pool is asked at once.
func (s *Server) change(w http.ResponseWriter, r *http.Request, f *Front, up controller.Update) {
	ctx, done := s.waiting(r.Context())
	defer done()
	over, err := s.submit(ctx, f, up, nil)
	switch {
	case errors.Is(err, controller.ErrUnanswered) && ctx.Err() == nil:
		s.o.Log.Warn("the pool is changed while it cannot be seen whether it is being updated", "pool", f.Name, "err", err)
		over = f.Updater.Pass(r.Context(), &up)
	case err != nil:
		s.refuse(w, up.Kind, up.MachineID, err)
		return
	default:
		over = s.wait(ctx, w, f, over)
	}
	if over != nil {
		s.relay(w, over)
	}
}

// update submits an update, and answers when it is over, or at once if the client prefers that.
func (s *Server) update(w http.ResponseWriter, r *http.Request, f *Front, up controller.Update, judge func(context.Context, *controller.Update) error) {
	ctx, done := s.waiting(r.Context())
	defer done()
	// What was accepted goes on when the client leaves; until then it may be given up with it.
	accepted, err := s.submit(ctx, f, up, judge)
	switch {
	case errors.Is(err, controller.ErrAlready):
		w.WriteHeader(http.StatusOK)
		return
	case err != nil && controller.ResultOf(err) == controller.NotFound && up.Kind != controller.SetSize:
		if past, pastErr := f.Updater.Past(r.Context(), &up); pastErr == nil && past != nil && !s.o.StrictCompat {
			s.told(w, past) // the client asks again for what was done
			return
		}
		if s.o.StrictCompat && f.Updater.HasNodeAlone(up.MachineID) {
			err = &controller.Failure{Result: controller.NotFound, Detail: err.Error(), Err: errNodeAlone}
		}
		s.refuse(w, up.Kind, up.MachineID, err)
		return
	case err != nil:
		s.refuse(w, up.Kind, up.MachineID, err)
		return
	}
	if wantsAsync(r) {
		w.Header().Set("Preference-Applied", "respond-async")
		w.Header().Set("Location", updatePath(f.Name, accepted.ID))
		w.Header().Set("Slipway-Update", accepted.ID)
		show(w, http.StatusAccepted, accepted)
		return
	}
	if over := s.wait(ctx, w, f, accepted); over != nil {
		s.told(w, over)
	}
}

// wait waits for an update. If the wait ends before, it answers the client and returns nil.
func (s *Server) wait(ctx context.Context, w http.ResponseWriter, f *Front, up *controller.Update) *controller.Update {
	over, err := up.Wait(ctx)
	if err != nil {
		s.o.Log.Info("a client waits no longer; its update goes on", "pool", f.Name, "update", up.ID)
		say(w, http.StatusServiceUnavailable, failed(up.Kind), "the update "+up.ID+" goes on: ask for "+updatePath(f.Name, up.ID))
		return nil
	}
	return over
}

// queueEvery is how often a client looks that waits for another one's update, where that is the contract.
const queueEvery = 500 * time.Millisecond

// submit submits an update. In strict compatibility it waits until the pool is free: kubeaware-cloudpool-proxy never answered 429.
func (s *Server) submit(ctx context.Context, f *Front, up controller.Update, judge func(context.Context, *controller.Update) error) (*controller.Update, error) {
	for {
		accepted, err := f.Updater.Submit(ctx, up, judge)
		var busy *controller.BusyError
		if !s.o.StrictCompat || !errors.As(err, &busy) {
			return accepted, err
		}
		if !elapsed.Sleep(ctx, queueEvery) {
			return nil, context.Cause(ctx)
		}
	}
}

// wantsAsync reads RFC 7240's preference.
func wantsAsync(r *http.Request) bool {
	for _, line := range r.Header.Values("Prefer") {
		for one := range strings.SplitSeq(line, ",") {
			name, _, _ := strings.Cut(strings.TrimSpace(one), ";")
			if strings.EqualFold(strings.TrimSpace(name), "respond-async") {
				return true
			}
		}
	}
	return false
}

func updatePath(pool, id string) string { return ownPrefix + "pools/" + pool + "/updates/" + id }

// serveOwn answers what the cloudpool API does not have: how an update is, and what a size would lead to.
func (s *Server) serveOwn(w http.ResponseWriter, r *http.Request) (pool, handling string) {
	segments := strings.Split(strings.TrimPrefix(r.URL.Path, ownPrefix), "/")
	if len(segments) < 3 || segments[0] != "pools" {
		say(w, http.StatusNotFound, "there is nothing here", "want "+updatePath("POOL", "ID")+" or "+ownPrefix+"pools/POOL/plan?desiredSize=N")
		return "", "unknown"
	}
	f := s.front(target{pool: segments[1]})
	switch {
	case f == nil:
		return s.noPool(w, r, segments[1], "get")
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		notAllowed(w, "GET")
		return f.Name, "refused"
	}
	if _, ok := s.authorize(w, r, f.Name, "get"); !ok {
		return f.Name, "denied"
	}
	switch {
	case len(segments) == 4 && segments[2] == "updates":
		s.status(w, r, f, segments[3])
	case len(segments) == 3 && segments[2] == "plan":
		s.plan(w, r, f)
	default:
		say(w, http.StatusNotFound, "there is nothing here", "want updates/ID or plan?desiredSize=N")
	}
	return f.Name, "own"
}

func (s *Server) status(w http.ResponseWriter, r *http.Request, f *Front, id string) {
	up, err := f.Updater.Find(r.Context(), id)
	switch {
	case err != nil:
		say(w, http.StatusServiceUnavailable, "the update cannot be read", err.Error())
	case up == nil:
		say(w, http.StatusNotFound, "there is no such update", fmt.Sprintf("the latest %d of a pool are remembered", controller.KeepPast))
	default:
		show(w, http.StatusOK, up)
	}
}

func (s *Server) plan(w http.ResponseWriter, r *http.Request, f *Front) {
	if refuseUnread(w, f) {
		return
	}
	n, err := strconv.Atoi(r.URL.Query().Get("desiredSize"))
	if err != nil || n < 0 {
		say(w, http.StatusBadRequest, "desiredSize is missing or no number", "want ?desiredSize=N with N from 0 on")
		return
	}
	d, err := f.Updater.Decide(r.Context(), n)
	if err != nil {
		say(w, codeOf(controller.ResultOf(err)), "no decision can be made", err.Error())
		return
	}
	show(w, http.StatusOK, d)
}
