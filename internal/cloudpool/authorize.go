package cloudpool

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/slipway-dev/slipway/api/v1alpha1"
)

// What a client has to have the right to: get or update the scale of the NodeGroup by the name of the pool, as in
//
//	apiGroups: [slipway.dev]
//	resources: [nodegroups/scale]
//	resourceNames: [workers]
//	verbs: [get, update]
const (
	scaleResource    = "nodegroups"
	scaleSubresource = "scale"
)

// How long an answer of the API server is believed, and how many are.
const (
	believeYes    = 30 * time.Second
	believeNo     = 5 * time.Second
	mostBelieved  = 4096
	reviewTimeout = 10 * time.Second
)

// How often the API server is asked about tokens that were good for nothing yet, which anybody can make up: how many times a
// second, how many times on end, and how many times at once.
const (
	askRate   = 20
	askBurst  = 100
	askAtOnce = 16
)

// How often of that for tokens from one address, so that who makes tokens up leaves something to others; and how many addresses are
// told apart.
const (
	fromRate      = 5
	fromBurst     = 25
	mostAddresses = 1024
)

// errTooMany is a token that the API server is not asked about now.
var errTooMany = errors.New("too many tokens are shown that were good for nothing yet")

// authorizer asks the API server who clients are and what they may.
type authorizer struct {
	client kubernetes.Interface
	log    *slog.Logger

	// asks bounds how often, and under how many times at once, the API server is asked about strangers; told that it does.
	asks  *rate.Limiter
	under chan struct{}
	told  rate.Sometimes

	mu       sync.Mutex
	believed map[[sha256.Size]byte]verdict
	from     map[netip.Prefix]*rate.Limiter // how often it is asked about the strangers of an address
}

func newAuthorizer(client kubernetes.Interface, log *slog.Logger) *authorizer {
	return &authorizer{
		client: client, log: log, asks: rate.NewLimiter(askRate, askBurst), under: make(chan struct{}, askAtOnce),
		told: rate.Sometimes{Interval: time.Minute}, believed: map[[sha256.Size]byte]verdict{},
		from: map[netip.Prefix]*rate.Limiter{},
	}
}

type verdict struct {
	user    string
	allowed bool
	until   time.Time
}

// identity is who a client is.
type identity struct {
	user   string
	groups []string
	extra  map[string]authorizationv1.ExtraValue
	uid    string
}

// Authorize implements ServerOptions.Authorize.
func (a *authorizer) Authorize(w http.ResponseWriter, r *http.Request, pool, verb string) (string, bool) {
	token := bearer(r)
	var certified *identity
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		leaf := r.TLS.VerifiedChains[0][0]
		certified = &identity{user: leaf.Subject.CommonName, groups: append([]string{"system:authenticated"}, leaf.Subject.Organization...)}
	}
	if token == "" && (certified == nil || certified.user == "") {
		w.Header().Set("WWW-Authenticate", "Bearer")
		say(w, http.StatusUnauthorized, "it is not known who you are", "want a client certificate, or a token: Authorization: Bearer TOKEN")
		return "", false
	}
	v, err := a.verdict(r.Context(), r.RemoteAddr, token, certified, pool, verb)
	switch {
	case errors.Is(err, errTooMany):
		a.told.Do(func() { a.log.Warn("a client is not let in, and the API server not asked about it", "err", err) })
		w.Header().Set("Retry-After", strconv.Itoa(retrySeconds))
		say(w, http.StatusServiceUnavailable, "the API server is not asked whether you may", err.Error()+": ask again later")
		return "", false
	case err != nil:
		a.log.Warn("cannot ask whether a client may", "err", err)
		say(w, http.StatusServiceUnavailable, "the API server does not say whether you may", "ask again later")
		return "", false
	case v.user == "":
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		say(w, http.StatusUnauthorized, "it is not known who you are", "the API server does not know the token")
		return "", false
	case !v.allowed:
		say(w, http.StatusForbidden, fmt.Sprintf("%s may not %s pool %s", v.user, verb, pool),
			fmt.Sprintf("want the right to %s %s/%s %s of %s", verb, scaleResource, scaleSubresource, pool, v1alpha1.GroupVersion.Group))
		return "", false
	}
	return v.user, true
}

// bearer is the token that a client shows; empty when it shows none. Over HTTP/2 a header may end in spaces.
func bearer(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "" // such as a password: it is nobody's to be asked about here
	}
	return strings.TrimSpace(token)
}

// verdict remembers for a short time what the API server has said.
func (a *authorizer) verdict(ctx context.Context, from, token string, certified *identity, pool, verb string) (verdict, error) {
	who := "token\x00" + token
	if certified != nil && token == "" {
		who = "cert\x00" + certified.user + "\x00" + strings.Join(certified.groups, "\x00")
	}
	key, anywhere := sha256.Sum256([]byte(who+"\x01"+pool+"\x01"+verb)), sha256.Sum256([]byte(who))
	a.mu.Lock()
	v, known := a.believed[key]
	letIn := v.allowed || a.believed[anywhere].allowed
	a.mu.Unlock()
	if known && time.Now().Before(v.until) {
		return v, nil
	}
	// One that was let in before, to whichever pool, does not wait for strangers, nor does one whom a certificate names.
	if token != "" && !letIn {
		if !a.asksFrom(from).Allow() || !a.asks.Allow() {
			return verdict{}, errTooMany
		}
		select {
		case a.under <- struct{}{}:
			defer func() { <-a.under }()
		case <-time.After(reviewTimeout):
			return verdict{}, errTooMany
		case <-ctx.Done():
			return verdict{}, context.Cause(ctx)
		}
	}
	v, err := a.ask(ctx, token, certified, pool, verb)
	if err != nil {
		return verdict{}, err
	}
	v.until = time.Now().Add(believeNo)
	if v.allowed {
		v.until = time.Now().Add(believeYes)
	}
	a.remember(key, v)
	switch {
	case v.allowed:
		a.remember(anywhere, v)
	case v.user == "":
		a.forget(anywhere) // such as a token that was revoked
	}
	return v, nil
}

// asksFrom is what bounds the strangers of an address. Of IPv6 a network is one, since whoever has one address there has all.
// Where there are too many, those that have not been heard of for long are forgotten; the others that come share one.
func (a *authorizer) asksFrom(remote string) *rate.Limiter {
	var from netip.Prefix
	if at, err := netip.ParseAddrPort(remote); err == nil {
		ip, bits := at.Addr().Unmap().WithZone(""), 64
		if ip.Is4() {
			bits = 32
		}
		from, _ = ip.Prefix(bits)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.from[from] == nil && len(a.from) >= mostAddresses-1 {
		maps.DeleteFunc(a.from, func(_ netip.Prefix, l *rate.Limiter) bool { return l.Tokens() >= fromBurst })
		if len(a.from) >= mostAddresses-1 {
			from = netip.Prefix{}
		}
	}
	l := a.from[from]
	if l == nil {
		l = rate.NewLimiter(fromRate, fromBurst)
		a.from[from] = l
	}
	return l
}

// remember keeps a verdict. Where there are too many, those that let nobody in are forgotten first, since anybody can have them
// made, then those whose time is over.
func (a *authorizer) remember(key [sha256.Size]byte, v verdict) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	for _, forgets := range []func(verdict) bool{
		func(v verdict) bool { return !v.allowed },
		func(v verdict) bool { return now.After(v.until) },
		func(verdict) bool { return true },
	} {
		if len(a.believed) < mostBelieved {
			break
		}
		maps.DeleteFunc(a.believed, func(_ [sha256.Size]byte, v verdict) bool { return forgets(v) })
	}
	a.believed[key] = v
}

func (a *authorizer) forget(key [sha256.Size]byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.believed, key)
}

func (a *authorizer) ask(ctx context.Context, token string, certified *identity, pool, verb string) (verdict, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
	defer cancel()
	who := certified
	if token != "" {
		review, err := a.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token},
		}, metav1.CreateOptions{})
		if err != nil {
			return verdict{}, fmt.Errorf("TokenReview: %w", err)
		}
		if !review.Status.Authenticated {
			return verdict{}, nil
		}
		u := review.Status.User
		who = &identity{user: u.Username, groups: u.Groups, uid: u.UID, extra: map[string]authorizationv1.ExtraValue{}}
		for k, v := range u.Extra {
			who.extra[k] = authorizationv1.ExtraValue(v)
		}
	}
	review, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: who.user, Groups: who.groups, Extra: who.extra, UID: who.uid,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Resource: scaleResource,
				Subresource: scaleSubresource, Name: pool, Verb: verb,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return verdict{}, fmt.Errorf("SubjectAccessReview: %w", err)
	}
	return verdict{user: who.user, allowed: review.Status.Allowed && !review.Status.Denied}, nil
}
