package cloudpool

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

	"github.com/slipway-dev/slipway/internal/cloudpool/api"
)

// Front is one pool that a Server serves.
type Front struct {
	Name    string
	Backend Backend
	Updater *Updater
	// URL is where requests are passed on to, and Transport how; for a pool that has a server of its own.
	URL       *url.URL
	Transport http.RoundTripper
	// Native answers what is not an update; for a pool that has no server of its own.
	Native *Native

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
	// Authorize says who a client is, or answers that it may not. verb is get or update. nil lets everybody.
	Authorize func(w http.ResponseWriter, r *http.Request, pool, verb string) (user string, ok bool)
	Metrics   *Metrics
	Log       *slog.Logger
}

const (
	defaultMaxBody = 1 << 20
	// maxUpdateBody bounds the body of what is not passed on, in bytes: a machine's ID and some words.
	maxUpdateBody         = 64 << 10
	defaultBackendTimeout = 5 * time.Minute
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
		o.MaxBody = defaultMaxBody
	}
	if o.BackendTimeout <= 0 {
		o.BackendTimeout = defaultBackendTimeout
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

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seen := &recorder{ResponseWriter: w, within: s.o.BackendTimeout}
	seen.until(time.Time{}) // what an earlier answer over the same connection had
	pool, handling := s.serve(seen, r)
	s.o.Metrics.request(pool, handling, strconv.Itoa(max(seen.code, http.StatusOK)))
}

// recorder notes the code of an answer, and bounds the time that the client may take to read it.
type recorder struct {
	http.ResponseWriter
	within time.Duration
	code   int
}

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(code int) {
	if r.code == 0 && code >= 200 {
		r.code = code
		r.until(time.Now().Add(r.within))
	}
	r.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
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
	if s.o.Authorize == nil {
		return "", true
	}
	return s.o.Authorize(w, r, pool, verb)
}

// front finds the pool of a request.
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
	if s.o.Authorize != nil {
		return "want /" + multiSegment + "/NAME"
	}
	var names []string
	for _, f := range s.fronts {
		names = append(names, "/"+multiSegment+"/"+f.Name)
	}
	return "want one of " + strings.Join(names, ", ")
}

// list answers GET /cloudpools.
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

// handle answers a request to a pool, and says how.
func (s *Server) handle(w http.ResponseWriter, r *http.Request, f *Front, t target, verb, user string) string {
	if f.Native != nil && f.Native.stopped(w, r, t) {
		return "refused"
	}
	if t.action == actOther {
		if err := checkPath(r.Method, r.URL.EscapedPath()); err != nil {
			say(w, http.StatusBadRequest, "the path is not one that all servers read alike", err.Error())
			return "refused"
		}
	}
	if verb == "get" {
		return s.pass(w, r, f, t)
	}
	update := map[action]func(http.ResponseWriter, *http.Request, *Front, []byte, string){
		actSize: s.setSize, actTerminate: s.terminate, actDetach: s.detach, actMembership: s.membership,
	}[t.action]
	switch {
	case t.action == actItself:
		notAllowed(w, "GET") // a server of several would delete the pool
		return "refused"
	case r.Method == http.MethodConnect || r.Method == http.MethodTrace:
		notAllowed(w, "GET, POST")
		return "refused"
	case r.Method != http.MethodPost && t.action != actOther:
		notAllowed(w, "GET, POST") // a server that took it for a POST would be reached past all checks
		return "refused"
	case slices.Contains(s.o.Refuse, string(t.action)):
		say(w, http.StatusForbidden, "this pool's proxy does not pass on "+string(t.action), "it was started with --refuse="+strings.Join(s.o.Refuse, ","))
		return "refused"
	case update == nil:
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
	if err != nil {
		tooLong := new(http.MaxBytesError)
		if errors.As(err, &tooLong) {
			say(w, http.StatusRequestEntityTooLarge, "the body is too long", fmt.Sprintf("want at most %d bytes", maxUpdateBody))
			return "refused"
		}
		say(w, http.StatusBadRequest, "the body cannot be read", err.Error())
		return "refused"
	}
	update(w, r, f, raw, user)
	return "update"
}

// hazards are the actions that are passed on, and that may lead to a smaller pool by the server's own doing.
var hazards = map[action]string{
	actAttach: "the pool counts one more machine, and removes one of its choice where that is too many",
	actConfig: "the pool is stopped and started anew with another configuration, and may come to another size",
	actStart:  "the pool begins to go by a desired size that may be smaller than it is",
}

// setSize answers POST /pool/size.
func (s *Server) setSize(w http.ResponseWriter, r *http.Request, f *Front, raw []byte, user string) {
	want, err := api.DecodeSetDesiredSize(raw)
	if err != nil {
		s.refuse(w, SetSize, "", err)
		return
	}
	up := Update{Kind: SetSize, Pool: f.Name, DesiredSize: want.DesiredSize, RequestedBy: user}
	smaller, err := shrinks(r.Context(), f.Backend, want.DesiredSize)
	if err != nil {
		s.refuse(w, SetSize, "", err)
		return
	}
	if smaller {
		s.update(w, r, f, up, f.Updater.judgeSize)
		return
	}
	err = s.alone(r.Context(), f, func(ctx context.Context) error {
		// Another client may have changed the pool since, and what passes must not shrink it.
		smaller, err := shrinks(ctx, f.Backend, want.DesiredSize)
		switch {
		case err != nil:
			return err
		case smaller:
			return errShrinks
		}
		return f.Backend.SetDesiredSize(ctx, want.DesiredSize)
	})
	var busy *BusyError
	switch {
	case errors.Is(err, errShrinks), errors.As(err, &busy) && busy.By != nil && busy.By.same(&up):
		s.update(w, r, f, up, f.Updater.judgeSize)
	case s.held(w, f, SetSize, err):
	default:
		s.relay(w, SetSize, fmt.Sprintf("setDesiredSize %d", want.DesiredSize), err)
	}
}

// alone does what is passed on to a pool's server while nobody else changes the pool. Until its turn has come it may be given
// up with the process; what is passed on then comes to its own.
func (s *Server) alone(ctx context.Context, f *Front, do func(context.Context) error) error {
	return s.inTurn(ctx, func(waiting context.Context) error {
		return f.Updater.Exclusively(waiting, func(context.Context) error { return do(ctx) })
	})
}

// errShrinks is a size that a pool could take a machine away to come to.
var errShrinks = errors.New("the pool is larger")

// held answers for a pool that could not be had for a request, or not be read. What a pool without a server of its own says
// is relayed as its own word.
func (s *Server) held(w http.ResponseWriter, f *Front, kind Kind, err error) bool {
	var busy *BusyError
	var failed *Failure
	if errors.As(err, &busy) || f.Native == nil && errors.As(err, &failed) {
		s.refuse(w, kind, "", err)
		return true
	}
	return false
}

// shrinks reports whether a pool could take a machine away to come to a size: it is meant to be larger, or it is.
func shrinks(ctx context.Context, b Backend, n int) (bool, error) {
	size, err := b.Size(ctx)
	if err != nil {
		return false, backendFailure("reading the pool's size", err)
	}
	if n < size.Desired || n < size.Active {
		return true, nil
	}
	pool, err := b.Pool(ctx)
	if err != nil {
		return false, backendFailure("reading the pool", err)
	}
	return n < activeIn(&pool), nil
}

// terminate answers POST /pool/terminate.
func (s *Server) terminate(w http.ResponseWriter, r *http.Request, f *Front, raw []byte, user string) {
	want, err := api.DecodeTerminate(raw)
	if err != nil {
		s.refuse(w, Terminate, "", err)
		return
	}
	s.update(w, r, f, Update{Kind: Terminate, MachineID: want.MachineID, Decrement: want.Decrement, RequestedBy: user}, f.Updater.judgeMachine)
}

// detach answers POST /pool/detach. The machine runs on, and so do its pods; the pool must not be changed meanwhile.
func (s *Server) detach(w http.ResponseWriter, r *http.Request, f *Front, raw []byte, user string) {
	want, err := api.DecodeDetach(raw)
	if err != nil {
		s.refuse(w, detachMachine, "", err)
		return
	}
	err = s.alone(r.Context(), f, func(ctx context.Context) error {
		if f.Native == nil {
			if err := f.Updater.release(ctx, want.MachineID, true); err != nil {
				return err
			}
		}
		return f.Backend.Detach(ctx, want)
	})
	if s.held(w, f, detachMachine, err) {
		return
	}
	if err == nil {
		s.o.Log.Info("a machine is detached: it runs on outside of the pool", "pool", f.Name, "machine", want.MachineID, "user", user)
	} else {
		s.o.Log.Warn("a machine could not be detached", "pool", f.Name, "machine", want.MachineID, "user", user, "err", err)
	}
	s.relay(w, detachMachine, "detachMachine "+want.MachineID, err)
}

// membership answers POST /pool/membershipStatus. To make a machine disposable is to have it terminated and replaced.
func (s *Server) membership(w http.ResponseWriter, r *http.Request, f *Front, raw []byte, user string) {
	want, err := api.DecodeMembershipStatus(raw)
	if err != nil {
		s.refuse(w, setMembershipStatus, "", err)
		return
	}
	if want.MembershipStatus.Disposable() {
		s.update(w, r, f, Update{Kind: Dispose, MachineID: want.MachineID, RequestedBy: user}, f.Updater.judgeMachine)
		return
	}
	err = s.alone(r.Context(), f, func(ctx context.Context) error {
		if f.Native != nil { // a pool without a server of its own takes no machine away by itself
			return f.Backend.SetMembershipStatus(ctx, want)
		}
		if !want.MembershipStatus.Evictable {
			if err := f.Updater.release(ctx, want.MachineID, false); err != nil {
				return err
			}
		}
		return f.Updater.setMembership(ctx, want)
	})
	if s.held(w, f, setMembershipStatus, err) {
		return
	}
	s.relay(w, setMembershipStatus, "setMembershipStatus "+want.MachineID, err)
}

// update has an update carried out, and answers when it is over, or at once where the client wants that.
func (s *Server) update(w http.ResponseWriter, r *http.Request, f *Front, up Update, judge func(context.Context, *Update) error) {
	ctx, done := s.waiting(r.Context())
	defer done()
	// What was accepted goes on when the client leaves; until then it may be given up with it.
	ticket, err := s.submit(ctx, f, up, judge)
	switch {
	case errors.Is(err, errAlready):
		w.WriteHeader(http.StatusOK)
		return
	case err != nil && resultOf(err) == NotFound && up.Kind != SetSize:
		if past, pastErr := f.Updater.Past(r.Context(), &up); pastErr == nil && past != nil && !s.o.StrictCompat {
			s.told(w, past) // the client asks again for what was done
			return
		}
		if s.o.StrictCompat && nodeAlone(f, up.MachineID) {
			err = &Failure{Result: NotFound, Detail: err.Error(), Err: errNodeAlone}
		}
		s.refuse(w, up.Kind, up.MachineID, err)
		return
	case err != nil:
		s.refuse(w, up.Kind, up.MachineID, err)
		return
	}
	if wantsAsync(r) {
		w.Header().Set("Preference-Applied", "respond-async")
		w.Header().Set("Location", updatePath(f.Name, ticket.Update.ID))
		w.Header().Set("Slipway-Update", ticket.Update.ID)
		show(w, http.StatusAccepted, ticket.Update)
		return
	}
	over, err := ticket.Wait(ctx)
	if err != nil {
		s.o.Log.Info("a client waits no longer; its update goes on", "pool", f.Name, "update", ticket.Update.ID)
		say(w, http.StatusServiceUnavailable, failed(up.Kind), "the update "+ticket.Update.ID+" goes on: ask for "+updatePath(f.Name, ticket.Update.ID))
		return
	}
	s.told(w, over)
}

// queueEvery is how often a client looks that waits for another one's update, where that is the contract.
const queueEvery = 500 * time.Millisecond

// submit submits an update in its turn.
func (s *Server) submit(ctx context.Context, f *Front, up Update, judge func(context.Context, *Update) error) (ticket *Ticket, err error) {
	err = s.inTurn(ctx, func(ctx context.Context) error {
		ticket, err = f.Updater.Submit(ctx, up, judge)
		return err
	})
	return ticket, err
}

// inTurn tries what a pool that is being updated does not let happen. In strict compatibility it tries until it does: clients
// of kubeaware-cloudpool-proxy waited for each other, and know no 429.
func (s *Server) inTurn(ctx context.Context, try func(context.Context) error) error {
	ctx, done := s.waiting(ctx)
	defer done()
	for {
		err := try(ctx)
		var busy *BusyError
		if !s.o.StrictCompat || !errors.As(err, &busy) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(queueEvery):
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
		say(w, http.StatusNotFound, "there is no such update", fmt.Sprintf("the latest %d of a pool are remembered", keepPast))
	default:
		show(w, http.StatusOK, up)
	}
}

func (s *Server) plan(w http.ResponseWriter, r *http.Request, f *Front) {
	n, err := strconv.Atoi(r.URL.Query().Get("desiredSize"))
	if err != nil || n < 0 {
		say(w, http.StatusBadRequest, "desiredSize is missing or no number", "want ?desiredSize=N with N from 0 on")
		return
	}
	d, err := f.Updater.Decide(r.Context(), n)
	if err != nil {
		say(w, codeOf(resultOf(err)), "no decision can be made", err.Error())
		return
	}
	show(w, http.StatusOK, d)
}
