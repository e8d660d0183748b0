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

// A client needs the right to get or update the scale of the NodeGroup with the pool's name, for example
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
	allowedTTL         = 30 * time.Second // cache time of a positive answer of the API server
	deniedTTL          = 5 * time.Second  // cache time of a negative answer
	knownClientTTL     = 24 * time.Hour   // time for which a known client is exempt from the limits
	maxCachedDecisions = 4096             // per cache
	reviewTimeout      = 10 * time.Second
	// Limits for reviews of unknown tokens, which anyone can invent: per second, burst, and concurrent.
	reviewRate, reviewBurst, maxConcurrentReviews = 20, 100, 16
	// Limits per client address, so that one client cannot use up all reviews: per second, burst, and number of tracked addresses.
	addressRate, addressBurst, maxAddresses = 5, 25, 1024
)

// errTooManyTokens is the error if a token was not reviewed because too many unknown tokens have arrived.
var errTooManyTokens = errors.New("too many unknown tokens")

// Authorizer asks the API server who a client is and whether it has access.
type Authorizer struct {
	client kubernetes.Interface
	// audiences are the accepted audiences of a token; empty means the API server's.
	audiences []string
	log       *slog.Logger

	// reviewLimiter and reviewSemaphore limit the reviews of unknown tokens. warnLimiter limits the log lines about that.
	reviewLimiter   *rate.Limiter
	reviewSemaphore *semaphore.Weighted
	warnLimiter     rate.Sometimes
	// allowedCache and deniedCache are separate, because anyone can cause denials, which must not evict other answers. allowedCache
	// also contains the known clients.
	allowedCache, deniedCache *cache.LRUExpireCache
	// addressLimiters contains the review limiter of each client address.
	addressLimiters *cache.LRUExpireCache
}

// NewAuthorizer returns an Authorizer that accepts tokens for one of the audiences.
func NewAuthorizer(client kubernetes.Interface, audiences []string, log *slog.Logger) *Authorizer {
	return &Authorizer{
		client: client, audiences: audiences, log: log, reviewLimiter: rate.NewLimiter(reviewRate, reviewBurst), reviewSemaphore: semaphore.NewWeighted(maxConcurrentReviews),
		warnLimiter: rate.Sometimes{Interval: time.Minute}, allowedCache: cache.NewLRUExpireCache(maxCachedDecisions), deniedCache: cache.NewLRUExpireCache(maxCachedDecisions),
		addressLimiters: cache.NewLRUExpireCache(maxAddresses),
	}
}

type accessDecision struct {
	user    string
	allowed bool
}

// Authorize implements ServerOptions.AuthorizeRequest.
func (a *Authorizer) Authorize(w http.ResponseWriter, r *http.Request, pool, verb string) (user string, allowed bool) {
	token := bearerToken(r)
	var certified *authorizationv1.SubjectAccessReviewSpec
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		who := r.TLS.VerifiedChains[0][0].Subject
		certified = &authorizationv1.SubjectAccessReviewSpec{User: who.CommonName, Groups: append([]string{"system:authenticated"}, who.Organization...)}
	}
	if token == "" && (certified == nil || certified.User == "") {
		w.Header().Set("WWW-Authenticate", "Bearer")
		writeError(w, http.StatusUnauthorized, "authentication required", "want a client certificate or the header Authorization: Bearer TOKEN")
		return "", false
	}
	v, err := a.decideAccess(r.Context(), r.RemoteAddr, token, certified, pool, verb)
	switch {
	case errors.Is(err, errTooManyTokens):
		a.warnLimiter.Do(func() { a.log.Warn("refusing a client without a token review", "err", err) })
		w.Header().Set("Retry-After", strconv.Itoa(retrySeconds))
		writeError(w, http.StatusServiceUnavailable, "cannot authorize the request", err.Error()+": retry later")
		return "", false
	case err != nil:
		a.log.Warn("cannot authorize a client", "err", err)
		writeError(w, http.StatusServiceUnavailable, "cannot authorize the request", "the API server does not answer: retry later")
		return "", false
	case v.user == "":
		w.Header().Set("WWW-Authenticate", `Bearer error="invalid_token"`)
		writeError(w, http.StatusUnauthorized, "authentication failed", a.describeAcceptedTokens())
		return "", false
	case !v.allowed:
		writeError(w, http.StatusForbidden, fmt.Sprintf("user %s is not allowed to %s pool %s", v.user, verb, pool),
			fmt.Sprintf("want the RBAC permission to %s %s/%s %s in %s", verb, scaleResource, scaleSubresource, pool, v1alpha1.GroupVersion.Group))
		return "", false
	}
	return v.user, true
}

// describeAcceptedTokens returns a text for a client with a token that is not accepted. It says which tokens are
// accepted.
func (a *Authorizer) describeAcceptedTokens() string {
	if len(a.audiences) == 0 {
		return "the API server does not accept the token"
	}
	return fmt.Sprintf("the API server does not accept the token for the audience %s: want a token from kubectl create token NAME --audience %s",
		strings.Join(a.audiences, " or "), a.audiences[0])
}

// bearerToken returns the bearer token of a request, or "" if there is none. It removes spaces at the end, which a
// header may have over HTTP/2.
func bearerToken(r *http.Request) string {
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return "" // for example a password, which must not be sent to the API server
	}
	return strings.TrimSpace(token)
}

// decideAccess reports whether a client has access. It takes the decision from the cache, or asks the API server.
func (a *Authorizer) decideAccess(ctx context.Context, remoteAddress, token string, certified *authorizationv1.SubjectAccessReviewSpec, pool, verb string) (accessDecision, error) {
	who := "token\x00" + token
	if certified != nil && token == "" {
		who = "cert\x00" + certified.User + "\x00" + strings.Join(certified.Groups, "\x00")
	}
	key, anywhere := sha256.Sum256([]byte(who+"\x01"+pool+"\x01"+verb)), sha256.Sum256([]byte(who))
	for _, answers := range []*cache.LRUExpireCache{a.allowedCache, a.deniedCache} {
		if v, known := answers.Get(key); known {
			return v.(accessDecision), nil
		}
	}
	// Clients with a certificate, and clients that had access to any pool before, are exempt from the limits.
	if _, letIn := a.allowedCache.Get(anywhere); token != "" && !letIn {
		waiting, cancel := context.WithTimeout(ctx, reviewTimeout)
		defer cancel()
		if !a.limiterForAddress(remoteAddress).Allow() || !a.reviewLimiter.Allow() || a.reviewSemaphore.Acquire(waiting, 1) != nil {
			return accessDecision{}, errTooManyTokens
		}
		defer a.reviewSemaphore.Release(1)
	}
	v, err := a.reviewAccess(ctx, token, certified, pool, verb)
	if err != nil {
		return accessDecision{}, err
	}
	a.cacheDecision(key, v)
	switch {
	case v.allowed:
		a.allowedCache.Add(anywhere, v, knownClientTTL)
	case v.user == "":
		a.allowedCache.Remove(anywhere) // for example a revoked token
	}
	return v, nil
}

func (a *Authorizer) cacheDecision(key any, v accessDecision) {
	if v.allowed {
		a.allowedCache.Add(key, v, allowedTTL)
	} else {
		a.deniedCache.Add(key, v, deniedTTL)
	}
}

// limiterForAddress returns the limiter for token reviews of a client address. All addresses of an IPv6 /64 network
// share one limiter, because a host in that network can use all of them. Only the limiters of the most recent addresses
// are stored.
func (a *Authorizer) limiterForAddress(remote string) *rate.Limiter {
	var from netip.Prefix
	if at, err := netip.ParseAddrPort(remote); err == nil {
		ip, bits := at.Addr().Unmap().WithZone(""), 64
		if ip.Is4() {
			bits = 32
		}
		from, _ = ip.Prefix(bits)
	}
	limiter, known := a.addressLimiters.Get(from)
	if !known {
		limiter = rate.NewLimiter(addressRate, addressBurst)
	}
	a.addressLimiters.Add(from, limiter, time.Minute)
	return limiter.(*rate.Limiter)
}

func (a *Authorizer) reviewAccess(ctx context.Context, token string, who *authorizationv1.SubjectAccessReviewSpec, pool, verb string) (accessDecision, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), reviewTimeout)
	defer cancel()
	if token != "" {
		review, err := a.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
			Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: a.audiences},
		}, metav1.CreateOptions{})
		if err != nil {
			return accessDecision{}, fmt.Errorf("TokenReview: %w", err)
		}
		if !review.Status.Authenticated || !a.isAcceptedAudience(review.Status.Audiences) {
			return accessDecision{}, nil
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
		return accessDecision{}, fmt.Errorf("SubjectAccessReview: %w", err)
	}
	return accessDecision{user: spec.User, allowed: review.Status.Allowed && !review.Status.Denied}, nil
}

// isAcceptedAudience reports whether one of the audiences is accepted. An API server or a webhook without audience
// support returns no audiences. Its answer is then valid only for the API server's own audience.
func (a *Authorizer) isAcceptedAudience(audiences []string) bool {
	return len(a.audiences) == 0 || slices.ContainsFunc(audiences, func(audience string) bool { return slices.Contains(a.audiences, audience) })
}
