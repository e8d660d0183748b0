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
	// BackendTimeout limits a request that is passed on, to the last byte of its answer; 0 is 5 minutes.
	BackendTimeout time.Duration
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

// ownPrefix begins the paths of what the cloudpool API does not have.
const ownPrefix = "/slipway/v1/"

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	seen := &recorder{ResponseWriter: w}
	pool, handling := s.serve(seen, r)
	s.o.Metrics.request(pool, handling, strconv.Itoa(max(seen.code, http.StatusOK)))
}

// recorder notes the code of an answer.
type recorder struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (r *recorder) WriteHeader(code int) {
	if r.code == 0 && code >= 200 {
		r.code = code
	}
	r.ResponseWriter.WriteHeader(code)
}

// Unwrap lets http.ResponseController reach what is below.
func (r *recorder) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// serve answers, and says for whom and how.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) (pool, handling string) {
	t := readPath(r.URL.EscapedPath())
	if strings.HasPrefix(r.URL.Path, ownPrefix) {
		return s.serveOwn(w, r)
	}
	if t.pool == "" && t.action == actOther && s.root == nil && slices.Equal(plainSegments(r.URL.EscapedPath()), []string{multiSegment}) {
		s.list(w, r)
		return "", "list"
	}
	f := s.front(t)
	if f == nil {
		say(w, http.StatusNotFound, "there is no such pool", s.pools())
		return "", "unknown"
	}
	verb := "update"
	if r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodOptions {
		verb = "get"
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

func (s *Server) pools() string {
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
	shrinks, err := shrinks(r.Context(), f.Backend, want.DesiredSize)
	if err != nil {
		s.refuse(w, SetSize, "", err)
		return
	}
	if shrinks {
		s.update(w, r, f, Update{Kind: SetSize, DesiredSize: want.DesiredSize, RequestedBy: user}, f.Updater.judgeSize)
		return
	}
	if err := s.idle(r.Context(), f, &Update{Kind: SetSize, Pool: f.Name, DesiredSize: want.DesiredSize}); err != nil {
		s.refuse(w, SetSize, "", err)
		return
	}
	s.relay(w, SetSize, fmt.Sprintf("setDesiredSize %d", want.DesiredSize), f.Backend.SetDesiredSize(r.Context(), want.DesiredSize))
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
	active := 0
	for i := range pool.Machines {
		if pool.Machines[i].Active() {
			active++
		}
	}
	return n < active, nil
}

// idle reports an update that is under way and asks for something else. Where the API server is away none can be known:
// none goes on there either.
func (s *Server) idle(ctx context.Context, f *Front, want *Update) error {
	busy, err := f.Updater.Busy(ctx)
	if err != nil {
		s.o.Log.Warn("cannot see whether an update of the pool is under way", "pool", f.Name, "err", err)
		return nil
	}
	if busy != nil && !busy.same(want) {
		return &BusyError{By: busy}
	}
	return nil
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
	if err == nil {
		err = s.idle(r.Context(), f, &Update{Kind: "detachMachine"})
	}
	if err != nil {
		s.refuse(w, Terminate, "", err)
		return
	}
	s.o.Log.Info("a machine is detached: it runs on outside of the pool", "pool", f.Name, "machine", want.MachineID, "user", user)
	s.relay(w, Terminate, "detachMachine "+want.MachineID, f.Backend.Detach(r.Context(), want))
}

// membership answers POST /pool/membershipStatus. To make a machine disposable is to have it terminated and replaced.
func (s *Server) membership(w http.ResponseWriter, r *http.Request, f *Front, raw []byte, user string) {
	want, err := api.DecodeMembershipStatus(raw)
	if err != nil {
		s.refuse(w, Terminate, "", err)
		return
	}
	if want.MembershipStatus.Disposable() {
		s.update(w, r, f, Update{Kind: Dispose, MachineID: want.MachineID, RequestedBy: user}, f.Updater.judgeMachine)
		return
	}
	if err := s.idle(r.Context(), f, &Update{Kind: "setMembershipStatus"}); err != nil {
		s.refuse(w, Terminate, "", err)
		return
	}
	set := f.Backend.SetMembershipStatus
	if f.Native == nil { // a pool without a server of its own takes no machine away by itself
		if set, err = setWithRoom(r.Context(), f.Backend, want); err != nil {
			s.refuse(w, Terminate, "", err)
			return
		}
	}
	s.relay(w, Terminate, "setMembershipStatus "+want.MachineID, set(r.Context(), want))
}

// update has an update carried out, and answers when it is over, or at once where the client wants that.
func (s *Server) update(w http.ResponseWriter, r *http.Request, f *Front, up Update, judge func(context.Context, *Update) error) {
	// What was accepted goes on when the client leaves; until then it may be given up with it.
	ticket, err := s.submit(r.Context(), f, up, judge)
	switch {
	case errors.Is(err, errAlready):
		w.WriteHeader(http.StatusOK)
		return
	case err != nil && resultOf(err) == NotFound && up.Kind != SetSize:
		if past, pastErr := f.Updater.Past(r.Context(), up.MachineID); pastErr == nil && past != nil && !s.o.StrictCompat {
			s.told(w, past) // the client asks again for what was done
			return
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
	over, err := ticket.Wait(r.Context())
	if err != nil {
		s.o.Log.Info("a client has left; its update goes on", "pool", f.Name, "update", ticket.Update.ID)
		say(w, http.StatusServiceUnavailable, failed(up.Kind), "the update "+ticket.Update.ID+" goes on: ask for "+updatePath(f.Name, ticket.Update.ID))
		return
	}
	s.told(w, over)
}

// queueEvery is how often a client looks that waits for another one's update, where that is the contract.
const queueEvery = 500 * time.Millisecond

// submit submits, and in strict compatibility waits for its turn as clients of kubeaware-cloudpool-proxy expect.
func (s *Server) submit(ctx context.Context, f *Front, up Update, judge func(context.Context, *Update) error) (*Ticket, error) {
	for {
		ticket, err := f.Updater.Submit(ctx, up, judge)
		var busy *BusyError
		if !s.o.StrictCompat || !errors.As(err, &busy) {
			return ticket, err
		}
		select {
		case <-ctx.Done():
			return nil, err
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
		say(w, http.StatusNotFound, "there is no such pool", s.pools())
		return "", "unknown"
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
