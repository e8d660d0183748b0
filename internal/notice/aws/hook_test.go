package aws

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slipway-dev/slipway/internal/notice"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// fakeAPI answers each request of a hook with a function, and counts the requests by their action. It also serves a role
// whose keys are numbered.
type fakeAPI struct {
	answer func(action string, w http.ResponseWriter)
	calls  map[string]int
	keys   []string // the key of each call
	issued int
}

// newTestHook returns a hook that calls the API.
func newTestHook(t *testing.T, api *fakeAPI, o HookOptions) *Hook {
	t.Helper()
	api.calls = map[string]int{}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /", func(w http.ResponseWriter, r *http.Request) {
		action := r.FormValue("Action")
		api.calls[action]++
		api.keys = append(api.keys, r.Header.Get("Authorization"))
		api.answer(action, w)
	})
	mux.HandleFunc("PUT "+tokenPath, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "token") })
	mux.HandleFunc("GET "+instanceRolePath, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == instanceRolePath {
			_, _ = io.WriteString(w, "node")
			return
		}
		api.issued++
		fmt.Fprintf(w, `{"AccessKeyId": "key-%d", "SecretAccessKey": "s", "Token": "t", "Expiration": "2999-01-01T00:00:00Z"}`, api.issued)
	})
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	for _, name := range []string{keyIDVariable, webIdentityVariable, podIdentityVariable} {
		t.Setenv(name, "")
	}
	t.Setenv(regionVariable, "eu-west-1")
	metadata, err := NewClient(ClientOptions{Endpoint: server.URL})
	must.NoError(t, err)
	o.Instance, o.Endpoint, o.Metadata = "i-0123456789abcdef0", server.URL, metadata
	return NewHook(o)
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.WriteHeader(status)
	fmt.Fprintf(w, "<ErrorResponse><Error><Code>%s</Code><Message>%s</Message></Error></ErrorResponse>", code, message)
}

func describeHooks(w http.ResponseWriter, timeout int) {
	fmt.Fprintf(w, "<member><LifecycleHookName>drain</LifecycleHookName><LifecycleTransition>%s</LifecycleTransition><HeartbeatTimeout>%d</HeartbeatTimeout></member>",
		terminatingTransition, timeout)
}

func TestRefusedCredentialsAreReplacedAndTheHookIsFound(t *testing.T) {
	for _, code := range []string{"ExpiredToken", "InvalidClientTokenId", "SignatureDoesNotMatch"} {
		api := &fakeAPI{}
		h := newTestHook(t, api, HookOptions{Group: "workers"})
		api.answer = func(_ string, w http.ResponseWriter) { refuse(w, http.StatusForbidden, code, "no") }
		off := (*hookOffError)(nil)
		if err := h.find(t.Context()); err == nil || errors.As(err, &off) {
			t.Errorf("%s: %v, want an error that is retried", code, err)
		}
		api.answer = func(_ string, w http.ResponseWriter) { describeHooks(w, 600) }
		must.NoError(t, h.find(t.Context()))
		check.Is(t, 2, api.issued)
		check.Contains(t, api.keys[1], "Credential=key-2/")
	}
	api := &fakeAPI{answer: func(_ string, w http.ResponseWriter) { refuse(w, http.StatusForbidden, "AccessDenied", "no") }}
	off := (*hookOffError)(nil)
	if err := newTestHook(t, api, HookOptions{Group: "workers"}).find(t.Context()); !errors.As(err, &off) {
		t.Errorf("AccessDenied: %v, want the hook off", err)
	}
}

func TestTimeoutOfANamedHookIsReadAfterAFailure(t *testing.T) {
	api := &fakeAPI{answer: func(_ string, w http.ResponseWriter) { refuse(w, http.StatusBadRequest, "Throttling", "Rate exceeded") }}
	h := newTestHook(t, api, HookOptions{Group: "workers", Hook: "drain"})
	if err := h.find(t.Context()); err == nil {
		t.Errorf("found %+v without an answer", h.state())
	}
	api.answer = func(_ string, w http.ResponseWriter) { describeHooks(w, 30) }
	must.NoError(t, h.find(t.Context()))
	check.Is(t, 30*time.Second, h.state().timeout)
}

func TestInstanceWithoutAGroupIsDrainedAtOnce(t *testing.T) {
	api := &fakeAPI{answer: func(_ string, w http.ResponseWriter) { _, _ = io.WriteString(w, "<AutoScalingInstances/>") }}
	h := newTestHook(t, api, HookOptions{})
	check.Is(t, false, h.findWithRetries(t.Context(), func() {}))
	r := asgReader{pathReader: testBase, hook: h, hookTimeout: time.Hour}
	s, err := r.parse([]byte("Terminated"), h.state())
	must.NoError(t, err)
	check.Is(t, "Terminate Scheduled period 30s", describe(s))
}

func TestGroupWithAnotherHookThanTheConfiguredOneWaits(t *testing.T) {
	for hooks, want := range map[int]string{0: "Terminate Scheduled period 30s", 1: "Terminate Scheduled period 1h0m0s"} {
		api := &fakeAPI{}
		api.answer = func(action string, w http.ResponseWriter) {
			if hooks > 0 && api.calls[action] > 1 { // the first request is about the configured name
				describeHooks(w, 600)
			}
		}
		h := newTestHook(t, api, HookOptions{Group: "workers", Hook: "typo"})
		check.Is(t, false, h.findWithRetries(t.Context(), func() {}))
		r := asgReader{pathReader: testBase, hook: h}
		s, err := r.parse([]byte("Terminated"), h.state())
		must.NoError(t, err)
		check.Is(t, want, describe(s))
	}
}

// TestHookThatIsNotReachedYetIsNotCompleted covers a group that first deregisters the instance from a load balancer.
func TestHookThatIsNotReachedYetIsNotCompleted(t *testing.T) {
	api := &fakeAPI{}
	h := newTestHook(t, api, HookOptions{Group: "workers", Hook: "drain"})
	waits, completed := false, 0
	api.answer = func(action string, w http.ResponseWriter) {
		switch {
		case !waits:
			refuse(w, http.StatusBadRequest, "ValidationError", "No active Lifecycle Action found with instance ID i-0123456789abcdef0")
		case action == "CompleteLifecycleAction":
			completed++
		}
	}
	h.group, h.name, h.current.timeout = "workers", "drain", time.Second
	h.setTerminating(true)
	if err := h.complete(t.Context()); !errors.Is(err, notice.ErrApprovedTooEarly) {
		t.Errorf("completed before the instance waits: %v", err)
	}
	check.Is(t, true, h.needsHeartbeat())
	waits = true
	h.sendHeartbeats(t.Context(), time.Millisecond) // one, which is accepted
	must.NoError(t, h.complete(t.Context()))
	check.Is(t, 1, completed)
	check.Is(t, false, h.needsHeartbeat())
}

// TestHookThatWaitedAndIsGoneIsCompleted covers a hook that another process has completed, or that has ended.
func TestHookThatWaitedAndIsGoneIsCompleted(t *testing.T) {
	api := &fakeAPI{answer: func(string, http.ResponseWriter) {}}
	h := newTestHook(t, api, HookOptions{Group: "workers", Hook: "drain"})
	h.group, h.name, h.current.timeout = "workers", "drain", time.Second
	h.setTerminating(true)
	h.sendHeartbeats(t.Context(), time.Millisecond)
	api.answer = func(_ string, w http.ResponseWriter) {
		refuse(w, http.StatusBadRequest, "ValidationError", "No active Lifecycle Action found with instance ID i-0123456789abcdef0")
	}
	must.NoError(t, h.complete(t.Context()))
	check.Is(t, false, h.needsHeartbeat())
}

// TestMain sets a proxy, which net/http reads only once. Requests to loopback addresses never use it.
func TestMain(m *testing.M) {
	_ = os.Setenv("HTTP_PROXY", "http://proxy.example.com:3128")
	m.Run()
}

// transportFunc is a transport that calls a function.
type transportFunc func(w http.ResponseWriter, r *http.Request)

func (f transportFunc) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	f(w, r)
	response := w.Result()
	response.Request = r
	return response, nil
}

func TestEndpointsHaveTheDomainOfThePartition(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	must.NoError(t, os.WriteFile(token, []byte("t"), 0o600))
	for domain, want := range map[string]string{
		"c2s.ic.gov": "c2s.ic.gov", "sc2s.sgov.gov": "sc2s.sgov.gov", "cloud.adc-e.uk\n": "cloud.adc-e.uk", "csp.hci.ic.gov": "csp.hci.ic.gov",
		"amazonaws.eu": "amazonaws.eu", "amazonaws.com.cn": "amazonaws.com.cn", "": "amazonaws.com", "<html>": "amazonaws.com",
	} {
		metadata, err := NewClient(ClientOptions{Wrap: func(http.RoundTripper) http.RoundTripper {
			return transportFunc(func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method == http.MethodPut:
					_, _ = io.WriteString(w, "token")
				case r.URL.Path == domainPath && domain != "":
					_, _ = io.WriteString(w, domain)
				default:
					http.NotFound(w, r)
				}
			})
		}})
		must.NoError(t, err)
		var hosts []string
		a := newAutoScaling("", metadata)
		a.region, a.http = "us-iso-east-1", &apiClient{&http.Client{Transport: transportFunc(func(w http.ResponseWriter, r *http.Request) {
			hosts = append(hosts, r.URL.Host)
			_, _ = io.WriteString(w, "<AccessKeyId>k</AccessKeyId><SecretAccessKey>s</SecretAccessKey>")
		})}}
		a.credentials.http = a.http
		a.credentials.getenv = func(name string) string { return map[string]string{webIdentityVariable: token}[name] }
		_, err = a.call(t.Context(), "DescribeLifecycleHooks", url.Values{})
		must.NoError(t, err)
		check.Equal(t, []string{"sts.us-iso-east-1." + want, "autoscaling.us-iso-east-1." + want}, hosts)
	}
}

func TestServicesOfTheNodeAreReadWithoutAProxy(t *testing.T) {
	for address, want := range map[string]bool{
		"http://169.254.170.23/v1/credentials": false, "http://[fd00:ec2::23]/v1/credentials": false, "http://autoscaling.example.com/": true,
	} {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
		must.NoError(t, err)
		proxy, err := findProxy(r)
		must.NoError(t, err)
		check.Is(t, want, proxy != nil)
	}
}
