package httpserver

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	authclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"
	k8stesting "k8s.io/client-go/testing"

	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newTestAuthorizer returns an Authorizer whose API server knows the tokens "good" (alice), "other" (bob) and "few" (carol). alice
// may get all pools and update workers. carol may get others.
func newTestAuthorizer(t *testing.T) (*Authorizer, *int) {
	t.Helper()
	asked := new(int)
	client := fake.NewClientset()
	client.PrependReactor("create", "tokenreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		review := a.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		user := map[string]string{"good": "alice", "other": "bob", "few": "carol"}[review.Spec.Token]
		review.Status = authenticationv1.TokenReviewStatus{
			Authenticated: user != "", User: authenticationv1.UserInfo{Username: user}, Audiences: review.Spec.Audiences,
		}
		return true, review, nil
	})
	client.PrependReactor("create", "subjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
		*asked++
		review := a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		ra := review.Spec.ResourceAttributes
		check.Not(t, ra.Group != "slipway.dev" || ra.Resource != "nodegroups" || ra.Subresource != "scale", "asked for %+v", ra)
		review.Status.Allowed = review.Spec.User == "alice" && (ra.Verb == "get" || ra.Name == "workers") ||
			review.Spec.User == "carol" && ra.Verb == "get" && ra.Name == "others"
		return true, review, nil
	})
	return NewAuthorizer(client, []string{"slipway-cloudpool"}, slog.New(slog.DiscardHandler)), asked
}

func TestTokenIsAuthorizedByAPIServer(t *testing.T) {
	a, asked := newTestAuthorizer(t)
	try := func(token, pool, verb string) (int, string) {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		if token != "" { // scheme names are case-insensitive (RFC 9110)
			r.Header.Set("Authorization", map[string]string{"get": "Bearer ", "update": "bearer "}[verb]+token)
		}
		user, ok := a.Authorize(w, r, pool, verb)
		check.Not(t, ok != (w.Body.Len() == 0) || ok != (user != ""), "allowed: %t, as %q, answered %q", ok, user, w.Body)
		check.Not(t, strings.Contains(w.Body.String(), token) && token != "", "the answer has the token in it: %s", w.Body)
		return w.Code, user
	}
	for _, tt := range []struct {
		token, pool, verb string
		code              int
		user              string
	}{
		{"good", "workers", "update", 200, "alice"},
		{"good", "others", "get", 200, "alice"},
		{"good", "others", "update", 403, ""},
		{"other", "workers", "get", 403, ""},
		{"bad", "workers", "get", 401, ""},
		{"", "workers", "get", 401, ""},
	} {
		if code, user := try(tt.token, tt.pool, tt.verb); code != tt.code || user != tt.user {
			t.Errorf("%+v: %d as %q", tt, code, user)
		}
	}
	before := *asked
	for range 100 {
		try("good", "workers", "update")
	}
	if *asked != before {
		t.Errorf("the API server was asked %d times more for the same request", *asked-before)
	}
}

// TestI10EmptyTokenIsUnauthorized covers headers that HTTP/2 lets through. HTTP/1 removes spaces at the end of a header.
func TestI10EmptyTokenIsUnauthorized(t *testing.T) {
	a, asked := newTestAuthorizer(t)
	alice := &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{Subject: pkix.Name{CommonName: "alice"}}}}}
	nameless := &tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}
	for _, header := range []string{"", "Bearer", "Bearer ", "Bearer  \t ", "Basic Z29vZDpnb29k"} {
		for _, tt := range []struct {
			shown *tls.ConnectionState
			code  int
			user  string
		}{{nil, 401, ""}, {nameless, 401, ""}, {alice, 200, "alice"}} {
			before := *asked
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/pool/size", nil)
			r.Header.Set("Authorization", header)
			r.TLS = tt.shown
			user, ok := a.Authorize(w, r, "workers", "update")
			if w.Code != tt.code || user != tt.user || ok != (user != "") {
				t.Errorf("%q with %+v: %d as %q, want %d as %q", header, tt.shown, w.Code, user, tt.code, tt.user)
			}
			check.Not(t, tt.code == http.StatusUnauthorized && *asked != before, "%q: the API server was asked without an identity", header)
		}
	}
}

func TestUnauthorizedClientsSeeNoPoolNames(t *testing.T) {
	a, _ := newTestAuthorizer(t)
	s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler), AuthorizeRequest: a.Authorize}, &ServedPool{Name: "workers"}, &ServedPool{Name: "others"})
	for _, tt := range []struct {
		token, path string
		code        int
	}{
		{"", "/cloudpools/x", 401},
		{"other", "/cloudpools/x/pool", 403},
		{"good", "/cloudpools/x", 404},
		{"", "/pool", 404},
		{"", "/slipway/v1/pools/x/plan", 401},
		{"", "/cloudpools", 401},
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, tt.path, nil)
		if tt.token != "" {
			r.Header.Set("Authorization", "Bearer "+tt.token)
		}
		s.ServeHTTP(w, r)
		if w.Code != tt.code || tt.path != "/cloudpools" && (strings.Contains(w.Body.String(), "workers") || strings.Contains(w.Body.String(), "others")) {
			t.Errorf("%s with %q: %d %s, want %d, without pool names", tt.path, tt.token, w.Code, w.Body, tt.code)
		}
	}
}

func TestClientsListOnlyTheirPools(t *testing.T) {
	a, _ := newTestAuthorizer(t)
	s := NewServer(ServerOptions{Log: slog.New(slog.DiscardHandler), AuthorizeRequest: a.Authorize}, &ServedPool{Name: "workers"}, &ServedPool{Name: "others"})
	for token, want := range map[string]struct {
		code int
		urls []string
	}{
		"good": {200, []string{"http://example.com/cloudpools/workers", "http://example.com/cloudpools/others"}},
		"few":  {200, []string{"http://example.com/cloudpools/others"}}, "other": {200, []string{}}, "unknown": {401, nil},
	} {
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/cloudpools", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		s.ServeHTTP(w, r)
		var urls []string
		_ = json.Unmarshal(w.Body.Bytes(), &urls) // an error is an object
		if w.Code != want.code || !slices.Equal(urls, want.urls) || (w.Header().Get("WWW-Authenticate") != "") != (want.code == 401) {
			t.Errorf("%s: %d %v %s, want %d %v", token, w.Code, w.Header(), w.Body, want.code, want.urls)
		}
	}
}

// slowReviewClient is an API server that takes a second for each token review, and counts them.
type slowReviewClient struct {
	kubernetes.Interface
	authclient.AuthenticationV1Interface
	authclient.TokenReviewInterface
	running, peak, total atomic.Int32
}

func (s *slowReviewClient) AuthenticationV1() authclient.AuthenticationV1Interface { return s }
func (s *slowReviewClient) RESTClient() rest.Interface                             { return nil }
func (s *slowReviewClient) TokenReviews() authclient.TokenReviewInterface          { return s }

func (s *slowReviewClient) Create(ctx context.Context, r *authenticationv1.TokenReview, o metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	s.total.Add(1)
	is := s.running.Add(1)
	defer s.running.Add(-1)
	for most := s.peak.Load(); is > most && !s.peak.CompareAndSwap(most, is); {
		most = s.peak.Load()
	}
	time.Sleep(time.Second)
	return s.Interface.AuthenticationV1().TokenReviews().Create(ctx, r, o)
}

// TestUnknownTokensAreRateLimited floods with invented tokens while a known token is in use.
func TestUnknownTokensAreRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := newTestAuthorizer(t)
		slow := &slowReviewClient{Interface: a.client}
		a.client = slow
		try := func(token string) int {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/pool", nil)
			r.Header.Set("Authorization", "Bearer "+token)
			a.Authorize(w, r, "workers", "get")
			check.Not(t, w.Code == http.StatusServiceUnavailable && w.Header().Get("Retry-After") == "", "%s: want Retry-After", token)
			return w.Code
		}
		if code := try("good"); code != http.StatusOK {
			t.Fatal(code)
		}
		slow.total.Store(0)
		var codes [600]atomic.Int32
		var flood sync.WaitGroup
		for i := range 5000 {
			flood.Go(func() { codes[try(fmt.Sprint("made-up-", i))].Add(1) })
		}
		flood.Wait()
		check.Is(t, http.StatusOK, try("good"))
		if n, most := slow.total.Load(), slow.peak.Load(); n > reviewBurst || most > maxConcurrentReviews {
			t.Errorf("the API server was asked %d times, and %d at once", n, most)
		}
		if codes[http.StatusUnauthorized].Load() == 0 || codes[http.StatusServiceUnavailable].Load() == 0 {
			t.Errorf("%d got 401, %d got 503; want some of both", codes[http.StatusUnauthorized].Load(), codes[http.StatusServiceUnavailable].Load())
		}
		time.Sleep(allowedTTL + time.Second)
		check.Is(t, http.StatusOK, try("good"))
	})
}

// TestTokenFloodBlocksNoNewToken floods from some addresses. It then uses a new token from another address, and a known
// token for another pool.
func TestTokenFloodBlocksNoNewToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, _ := newTestAuthorizer(t)
		try := func(from, token, pool, verb string) int {
			w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/pool", nil)
			r.RemoteAddr = from
			r.Header.Set("Authorization", "Bearer "+token)
			a.Authorize(w, r, pool, verb)
			return w.Code
		}
		flood := func(from string) {
			for i := range 2 * reviewBurst {
				try(from, fmt.Sprint("made-up-", i), "workers", "get")
			}
		}
		flood("192.0.2.1:1")
		for i := range 2 * reviewBurst {
			try(fmt.Sprintf("[2001:db8::%x]:1", i), "made-up", fmt.Sprint("pool-", i), "get") // all in one network
		}
		check.Is(t, http.StatusOK, try("192.0.2.2:1", "good", "workers", "get"))
		for i := range 2 * reviewBurst / addressBurst {
			flood(fmt.Sprintf("192.0.2.%d:1", 2+i))
		}
		check.Is(t, http.StatusServiceUnavailable, try("192.0.2.2:1", "other", "workers", "get"))
		if pools, verbs := try("192.0.2.2:1", "good", "others", "get"), try("192.0.2.2:1", "good", "workers", "update"); pools != 200 || verbs != 200 {
			t.Errorf("a known client got %d for another pool and %d for another verb", pools, verbs)
		}
		time.Sleep(time.Minute)
		for i := range 3 * maxAddresses {
			try(fmt.Sprintf("10.1.%d.%d:1", i/256, i%256), fmt.Sprint("made-up-", i), "workers", "get")
		}
		if n := len(a.addressLimiters.Keys()); n > maxAddresses {
			t.Errorf("%d addresses are tracked", n)
		}
	})
}

func TestDenialsDoNotEvictAllowedClients(t *testing.T) {
	a, asked := newTestAuthorizer(t)
	if v, err := a.decideAccess(t.Context(), "", "good", nil, "workers", "get"); err != nil || !v.allowed {
		t.Fatal(v, err)
	}
	for i := range 3 * maxCachedDecisions {
		a.cacheDecision(sha256.Sum256([]byte(fmt.Sprint("made-up-", i))), accessDecision{})
	}
	before := *asked
	if v, err := a.decideAccess(t.Context(), "", "good", nil, "workers", "get"); err != nil || !v.allowed || *asked != before {
		t.Errorf("%+v, %v: the API server was asked %d times more", v, err, *asked-before)
	}
	for i := range 2 * maxCachedDecisions {
		a.cacheDecision(sha256.Sum256([]byte(fmt.Sprint("good-", i))), accessDecision{user: "u", allowed: true})
	}
	if n := len(a.allowedCache.Keys()) + len(a.deniedCache.Keys()); n > 2*maxCachedDecisions {
		t.Errorf("%d decisions are cached", n)
	}
}

// authority is a certificate and its key.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newCertificate(t *testing.T, dir, name string, signer *authority, change func(*x509.Certificate)) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), BasicConstraintsValid: true,
	}
	change(template)
	parent, by := template, key
	if signer != nil {
		parent, by = signer.cert, signer.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	must.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	must.NoError(t, err)
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	must.NoError(t, err)
	a := &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	for file, block := range map[string][]byte{name + ".pem": a.pem, name + ".key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, file), block, 0o600))
	}
	return a
}

func TestClientCertificateOfOtherCAIsRefused(t *testing.T) {
	dir := t.TempDir()
	ca := func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign }
	client := func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} }
	root := newCertificate(t, dir, "root", nil, ca)
	stranger := newCertificate(t, dir, "stranger-root", nil, ca)
	newCertificate(t, dir, "server", root, func(c *x509.Certificate) { c.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} })
	newCertificate(t, dir, "client", root, client)
	newCertificate(t, dir, "stranger", stranger, client)
	in := func(name string) string { return filepath.Join(dir, name) }
	c := ListenOptions{
		Address: "127.0.0.1:0", TLSCertFile: in("server.pem"), TLSKeyFile: in("server.key"), ClientCAFile: in("root.pem"), ReadTimeout: time.Minute,
	}
	l, err := Listen(t.Context(), c, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte(r.TLS.VerifiedChains[0][0].Subject.CommonName))
	}), slog.New(slog.DiscardHandler))
	must.NoError(t, err)
	ended := make(chan error, 1)
	go func() { ended <- l.Run(t.Context()) }()
	ask := func(scheme, name string) (*http.Response, error) {
		roots := x509.NewCertPool()
		roots.AddCert(root.cert)
		config := &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
		if name != "" {
			pair := must.Get(tls.LoadX509KeyPair(in(name+".pem"), in(name+".key")))(t)
			config.Certificates = []tls.Certificate{pair}
		}
		transport := &http.Transport{TLSClientConfig: config}
		t.Cleanup(transport.CloseIdleConnections)
		return (&http.Client{Transport: transport}).Get(scheme + "://" + l.net.Addr().String() + "/")
	}
	response, err := ask("https", "client")
	must.Not(t, err != nil || response.StatusCode != http.StatusOK, "the right certificate: %v, %v", response, err)
	_ = response.Body.Close()
	for _, name := range []string{"", "stranger"} {
		if response, err := ask("https", name); err == nil {
			_ = response.Body.Close()
			t.Errorf("certificate %q: %d", name, response.StatusCode)
		}
	}
	if response, err := ask("http", ""); err == nil {
		_ = response.Body.Close()
		check.Is(t, http.StatusBadRequest, response.StatusCode)
	}
}

func TestTokenForOtherAudienceIsUnauthorized(t *testing.T) {
	for name, tt := range map[string]struct {
		accepted, returned []string // accepted audiences, and audiences that the API server returns
		code               int
	}{
		"accepted audience":                   {accepted: []string{"ours"}, returned: []string{"ours"}, code: http.StatusOK},
		"one of several":                      {accepted: []string{"ours", "old"}, returned: []string{"old"}, code: http.StatusOK},
		"other audience":                      {accepted: []string{"ours"}, returned: []string{"theirs"}, code: http.StatusUnauthorized},
		"API server without audience support": {accepted: []string{"ours"}, code: http.StatusUnauthorized},
		"API server's audience":               {code: http.StatusOK},
	} {
		client := fake.NewClientset()
		client.PrependReactor("create", "tokenreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
			review := a.(k8stesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
			check.Not(t, !slices.Equal(review.Spec.Audiences, tt.accepted), "%s: the review is for %q, want %q", name, review.Spec.Audiences, tt.accepted)
			review.Status = authenticationv1.TokenReviewStatus{
				Authenticated: true, User: authenticationv1.UserInfo{Username: "alice"}, Audiences: tt.returned,
			}
			return true, review, nil
		})
		client.PrependReactor("create", "subjectaccessreviews", func(a k8stesting.Action) (bool, runtime.Object, error) {
			review := a.(k8stesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
			review.Status.Allowed = true
			return true, review, nil
		})
		w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer good")
		NewAuthorizer(client, tt.accepted, slog.New(slog.DiscardHandler)).Authorize(w, r, "workers", "get")
		if w.Code != tt.code || tt.code == http.StatusUnauthorized && !strings.Contains(w.Body.String(), "audience ours") {
			t.Errorf("%s: %d %s, want %d", name, w.Code, w.Body, tt.code)
		}
	}
}
