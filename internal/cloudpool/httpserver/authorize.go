package httpserver

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/semaphore"
	"golang.org/x/time/rate"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/cache"
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

const (
	believeYes    = 30 * time.Second // how long an answer of the API server is believed
	believeNo     = 5 * time.Second
	letInFor      = 24 * time.Hour // without being counted as a stranger
	mostBelieved  = 4096           // answers
	reviewTimeout = 10 * time.Second
	// How often the API server is asked about tokens that were good for nothing yet, which anybody can make up: how many times a
	// second, how many times on end, and how many times at once.
	askRate, askBurst, askAtOnce = 20, 100, 16
	// How often of that for one address, so that who makes tokens up leaves something to others; and how many addresses are told apart.
	fromRate, fromBurst, mostAddresses = 5, 25, 1024
)

// errTooMany is a token that the API server is not asked about now.
var errTooMany = errors.New("too many tokens are shown that were good for nothing yet")

// Authorizer asks the API server who clients are and what they may.
type Authorizer struct {
	client kubernetes.Interface
	// audiences are those of which a token has to be for one; empty is the API server's.
	audiences []string
	log       *slog.Logger

	// asks bounds how often, and under how many times at once, the API server is asked about strangers; told that it does.
	asks  *rate.Limiter
	under *semaphore.Weighted
	told  rate.Sometimes
	// allowed and denied are its answers, apart: denials, which anybody can cause, push no other out. allowed has the known clients too.
	allowed, denied *cache.LRUExpireCache
	// from is how often it is asked about the strangers of an address.
	from *cache.LRUExpireCache
}

// NewAuthorizer returns an Authorizer of tokens for one of the audiences.
func NewAuthorizer(client kubernetes.Interface, audiences []string, log *slog.Logger) *Authorizer {
	return &Authorizer{
		client: client, audiences: audiences, log: log, asks: rate.NewLimiter(askRate, askBurst), under: semaphore.NewWeighted(askAtOnce),
		told: rate.Sometimes{Interval: time.Minute}, allowed: cache.NewLRUExpireCache(mostBelieved), denied: cache.NewLRUExpireCache(mostBelieved),
		from: cache.NewLRUExpireCache(mostAddresses),
	}
}

type verdict struct {
	user    string
	allowed bool
}

// Authorize implements ServerOptions.Identify.
func (a *Authorizer) Authorize(w http.ResponseWriter, r *http.Request, pool, verb string) (string, bool) {
	token := bearer(r)
	var certified *authorizationv1.SubjectAccessReviewSpec
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		who := r.TLS.VerifiedChains[0][0].Subject
		certified = &authorizationv1.SubjectAccessReviewSpec{User: who.CommonName, Groups: append([]string{"system:authenticated"}, who.Organization...)}
	}
	if token == "" && (certified == nil || certified.User == "") {
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
		say(w, http.StatusUnauthorized, "it is not known who you are", a.unknownToken())
		return "", false
	case !v.allowed:
		say(w, http.StatusForbidden, fmt.Sprintf("%s may not %s pool %s", v.user, verb, pool),
			fmt.Sprintf("want the right to %s %s/%s %s of %s", verb, scaleResource, scaleSubresource, pool, v1alpha1.GroupVersion.Group))
		return "", false
	}
	return v.user, true
}

// unknownToken says which tokens are accepted, to a client whose token is not.
func (a *Authorizer) unknownToken() string {
	if len(a.audiences) == 0 {
		return "the API server does not know the token"
	}
	return fmt.Sprintf("the API server does not know the token for the audience %s: want one such as kubectl create token NAME --audience %s prints",
		strings.Join(a.audiences, " or "), a.audiences[0])
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
func (a *Authorizer) verdict(ctx context.Context, from, token string, certified *authorizationv1.SubjectAccessReviewSpec, pool, verb string) (verdict, error) {
	who := "token\x00" + token
	if certified != nil && token == "" {
		who = "cert\x00" + certified.User + "\x00" + strings.Join(certified.Groups, "\x00")
	}
	key, anywhere := sha256.Sum256([]byte(who+"\x01"+pool+"\x01"+verb)), sha256.Sum256([]byte(who))
	for _, said := range []*cache.LRUExpireCache{a.allowed, a.denied} {
		if v, known := said.Get(key); known {
			return v.(verdict), nil
		}
	}
	// One that was let in before, to whichever pool, does not wait for strangers, nor does one whom a certificate names.
	if _, letIn := a.allowed.Get(anywhere); token != "" && !letIn {
		waiting, cancel := context.WithTimeout(ctx, reviewTimeout)
		defer cancel()
		if !a.asksFrom(from).Allow() || !a.asks.Allow() || a.under.Acquire(waiting, 1) != nil {
			return verdict{}, errTooMany
		}
		defer a.under.Release(1)
	}
	v, err := a.ask(ctx, token, certified, pool, verb)
	if err != nil {
		return verdict{}, err
	}
	a.remember(key, v)
	switch {
	case v.allowed:
		a.allowed.Add(anywhere, v, letInFor)
	case v.user == "":
		a.allowed.Remove(anywhere) // such as a token that was revoked
	}
	return v, nil
}

func (a *Authorizer) remember(key any, v verdict) {
	if v.allowed {
		a.allowed.Add(key, v, believeYes)
	} else {
		a.denied.Add(key, v, believeNo)
	}
}

// asksFrom is what bounds the strangers of an address. Of IPv6 a network is one, since whoever has one address there has all.
// The addresses that were seen last are remembered.
func (a *Authorizer) asksFrom(remote string) *rate.Limiter {
	var from netip.Prefix
	if at, err := netip.ParseAddrPort(remote); err == nil {
		ip, bits := at.Addr().Unmap().WithZone(""), 64
		if ip.Is4() {
			bits = 32
		}
		from, _ = ip.Prefix(bits)
	}
	limiter, known := a.from.Get(from)
	if !known {
		limiter = rate.NewLimiter(fromRate, fromBurst)
	}
	a.from.Add(from, limiter, time.Minute)
	return limiter.(*rate.Limiter)
}

func (a *Authorizer) ask(ctx context.Context, token string, who *authorizationv1.SubjectAccessReviewSpec, pool, verb string) (verdict, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
	defer cancel()
	if token != "" {
		review, err := a.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: a.audiences},
		}, metav1.CreateOptions{})
		if err != nil {
			return verdict{}, fmt.Errorf("TokenReview: %w", err)
		}
		if !review.Status.Authenticated || !a.isForUs(review.Status.Audiences) {
			return verdict{}, nil
		}
		u := review.Status.User
		who = &authorizationv1.SubjectAccessReviewSpec{User: u.Username, Groups: u.Groups, UID: u.UID, Extra: map[string]authorizationv1.ExtraValue{}}
		for k, v := range u.Extra {
			who.Extra[k] = authorizationv1.ExtraValue(v)
		}
	}
	spec := *who
	spec.ResourceAttributes = &authorizationv1.ResourceAttributes{
		Group: v1alpha1.GroupVersion.Group, Version: v1alpha1.GroupVersion.Version, Resource: scaleResource,
		Subresource: scaleSubresource, Name: pool, Verb: verb,
	}
	review, err := a.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return verdict{}, fmt.Errorf("SubjectAccessReview: %w", err)
	}
	return verdict{user: spec.User, allowed: review.Status.Allowed && !review.Status.Denied}, nil
}

// isForUs reports whether a token is for an audience that is wanted. An API server, or a webhook of its, that knows no
// audiences says none, and what it says holds for the API server alone.
func (a *Authorizer) isForUs(audiences []string) bool {
	return len(a.audiences) == 0 || slices.ContainsFunc(audiences, func(audience string) bool { return slices.Contains(a.audiences, audience) })
}
