package azure

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

const testSubscription = "00000000-0000-0000-0000-000000000001"

func TestI10ConfigErrorNamesFieldAndValue(t *testing.T) {
	for _, tc := range []struct{ name, text, says string }{
		{"empty", `{}`, `azure subscription: "": want a subscription ID`},
		{"subscription by name", `{subscription: prod, resourceGroup: rg}`, `azure subscription: "prod"`},
		{"no resource group", `{subscription: ` + testSubscription + `}`, `azure resourceGroup: ""`},
		{"resource group with a slash", `{subscription: ` + testSubscription + `, resourceGroup: a/b}`, `azure resourceGroup: "a/b"`},
		{"unknown cloud", `{cloud: AzureMoon}`, `azure cloud: "AzureMoon": want one of AzurePublic`},
		{"unknown method", `{auth: {method: password}}`, `azure auth.method: "password": want one of default`},
		{"token file of another method", `{auth: {tokenFile: /t}}`, `azure auth.tokenFile: "/t": want nothing, unless`},
		{"ARM without TLS", `{endpoints: {resourceManager: "http://x", authority: "https://y"}}`, `azure endpoints.resourceManager: "http://x": want an https URL`},
		{"window too long", `{batchWindow: 2m}`, `azure batchWindow: 2m0s: want 0s to 1m0s`},
		{"timeout too short", `{requestTimeout: 1ms}`, `azure requestTimeout: 1ms: want 1s to 5m0s`},
		{"scale set and agent pool", `{groups: [{name: a, scaleSet: s, agentPool: p}]}`, `azure groups[0].scaleSet: "s": want either`},
		{"neither scale set nor agent pool", `{groups: [{name: a}]}`, `azure groups[0].scaleSet: "": want a scale set, or else`},
		{"agent pool without resource group", `{groups: [{name: a, cluster: c, agentPool: p}]}`, `azure groups[0].resourceGroup: ""`},
		{"duplicate name", `{groups: [{name: a, scaleSet: s}, {name: A, scaleSet: t}]}`, `azure groups[1].name: "A": want a name that no other`},
		{"invalid agent pool name", `{groups: [{name: a, resourceGroup: r, cluster: c, agentPool: Spot}]}`, `azure groups[0].agentPool: "Spot"`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var c Config
			must.NoError(t, yaml.UnmarshalStrict([]byte(tc.text), &c))
			check.ErrorContains(t, c.Validate(), tc.says)
			check.ErrorContains(t, check.Err(New(c, Options{})))
		})
	}
}

func TestFullConfigIsValid(t *testing.T) {
	var c Config
	err := yaml.UnmarshalStrict([]byte(`
subscription: `+testSubscription+`
resourceGroup: MC_demo_(x)_westeurope
auth: {method: workloadIdentity, clientID: c, tenantID: t, tokenFile: /var/run/token}
cloud: AzureChina
batchWindow: 0s
requestTimeout: 10s
groups:
- {name: spot, resourceGroup: demo, cluster: demo, agentPool: spot}
- {name: gpu, scaleSet: aks-gpu-1-vmss}
`), &c)
	must.NoError(t, err)
	check.NoError(t, c.Validate())
	if c.batchWindow() != 0 || c.requestTimeout() != 10*time.Second {
		t.Errorf("batchWindow %v, requestTimeout %v", c.batchWindow(), c.requestTimeout())
	}
}

func TestComputerNameContainsInstanceNumber(t *testing.T) {
	for name, want := range map[string]int{
		"aks-pool-12345678-vmss00000a": 10, "AKS-POOL-12345678-VMSS00000A": 10, "aks-pool-12345678-vmss000000": 0,
		"aks-pool-12345678-vmss0000zz": 1295, "aks-pool-12345678-vmss000010": 36,
		"aks-pool-12345678-vmss00000": -1, "aks-other-12345678-vmss00000a": -1, "aks-pool-12345678-vmss0000-a": -1, "": -1, "00000a": -1,
	} {
		n, ok := ParseInstanceNumber("aks-pool-12345678-vmss", name)
		check.Not(t, ok != (want >= 0) || ok && n != want, "%q is instance %d, %v; want %d", name, n, ok, want)
	}
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 36*36*36*36*36*36-1).Draw(t, "n")
		name := fmt.Sprintf("vmss%s", pad36(n))
		if got, ok := ParseInstanceNumber("vmss", name); !ok || got != n {
			t.Errorf("%s is %d, want %d", name, got, n)
		}
	})
}

func pad36(n int) string {
	const digits = "0123456789abcdefghijklmnopqrstuvwxyz"
	out := make([]byte, 6)
	for i := 5; i >= 0; i-- {
		out[i] = digits[n%36]
		n /= 36
	}
	return string(out)
}

// sentBatches records what a batcher sends.
type sentBatches struct {
	mu      sync.Mutex
	batches [][]string
}

func (s *sentBatches) send(_ context.Context, where deletionTarget, deletions []deletion) []deletionResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	outcomes := make([]deletionResult, len(deletions))
	for i, d := range deletions {
		names = append(names, where.scaleSet+"/"+d.name)
		outcomes[i] = deletionResult{operationURL: "of " + d.name}
	}
	s.batches = append(s.batches, names)
	return outcomes
}

func newTestDeletion(name string) deletion {
	return deletion{instance: vmInstance{Instance: cloud.Instance{ProviderID: name}}, name: name}
}

func inScaleSet(name string) deletionTarget { return deletionTarget{group: group{scaleSet: name}} }

func TestDeletionsOfAGroupShareOneRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sentBatches
		b := &deletionBatcher{window: time.Second, timeout: time.Minute, send: s.send, pending: map[string]*deletionBatch{}}
		var all sync.WaitGroup
		for i := range 6 {
			all.Go(func() {
				name := fmt.Sprint(i % 3) // each machine is requested twice
				out := b.deleteInstance(t.Context(), inScaleSet("a"), newTestDeletion(name))
				check.Not(t, out.err != nil || out.operationURL != "of "+name, "machine %s: %+v", name, out)
			})
		}
		all.Go(func() { b.deleteInstance(t.Context(), inScaleSet("b"), newTestDeletion("x")) })
		all.Wait()
		b.deleteInstance(t.Context(), inScaleSet("a"), newTestDeletion("late"))
		sizes := map[int]int{}
		for _, names := range s.batches {
			sizes[len(names)]++
		}
		check.Not(t, len(s.batches) != 3 || sizes[3] != 1 || sizes[1] != 2, "sent %q, want one batch of three for a and two single ones", s.batches)
	})
}

func TestFullBatchIsSentAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s sentBatches
		b := &deletionBatcher{window: time.Hour, timeout: time.Minute, send: s.send, pending: map[string]*deletionBatch{}}
		began := time.Now()
		var all sync.WaitGroup
		for i := range maxBatchSize {
			all.Go(func() { b.deleteInstance(t.Context(), inScaleSet("a"), newTestDeletion(fmt.Sprint(i))) })
		}
		all.Wait()
		check.Not(t, len(s.batches) != 1 || time.Since(began) != 0, "%d batches after %v", len(s.batches), time.Since(began))
	})
}

// TestCancelledCallerDeletesNothing cancels the caller that opened the batch: before the batch is sent, and during its request.
func TestCancelledCallerDeletesNothing(t *testing.T) {
	for name, tt := range map[string]struct {
		leaves time.Duration
		sent   []string
	}{
		"before the request": {0, []string{"a/stays"}},
		"during the request": {1500 * time.Millisecond, []string{"a/left", "a/stays"}},
	} {
		t.Run(name, virtual.InVirtualTime(func(t *testing.T) {
			var s sentBatches
			send := func(ctx context.Context, where deletionTarget, deletions []deletion) []deletionResult {
				results := s.send(ctx, where, deletions)
				if time.Sleep(time.Second); ctx.Err() != nil {
					for i := range results {
						results[i] = deletionResult{err: ctx.Err()}
					}
				}
				return results
			}
			b := &deletionBatcher{window: time.Second, timeout: time.Minute, send: send, pending: map[string]*deletionBatch{}}
			ctx, leave := context.WithCancel(t.Context())
			var all sync.WaitGroup
			all.Go(func() {
				out := b.deleteInstance(ctx, inScaleSet("a"), newTestDeletion("left"))
				check.Not(t, !errors.Is(out.err, context.Canceled), "the cancelled caller got %+v", out)
			})
			synctest.Wait()
			all.Go(func() {
				out := b.deleteInstance(t.Context(), inScaleSet("a"), newTestDeletion("stays"))
				check.Not(t, out.err != nil || out.operationURL != "of stays", "the other caller got %+v", out)
			})
			synctest.Wait()
			time.Sleep(tt.leaves)
			leave()
			all.Wait()
			must.Not(t, len(s.batches) != 1, "sent %q", s.batches)
			check.Equal(t, tt.sent, s.batches[0])
		}))
	}
}

func TestDeletionRequestEndsAfterItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = time.Minute
		send := func(ctx context.Context, _ deletionTarget, _ []deletion) []deletionResult {
			select {
			case <-ctx.Done():
			case <-time.After(time.Hour):
			}
			return []deletionResult{{err: ctx.Err()}}
		}
		b := &deletionBatcher{timeout: timeout, send: send, pending: map[string]*deletionBatch{}}
		began := time.Now()
		out := b.deleteInstance(t.Context(), inScaleSet("a"), newTestDeletion("0"))
		check.Not(t, !errors.Is(out.err, context.DeadlineExceeded), "%+v", out)
		check.Is(t, timeout, time.Since(began))
	})
}

// TestRefusedInstanceFailsNoOtherDeletionOfBatch has instances 0, 1 and 2, and Azure refuses to delete instance 1.
func TestRefusedInstanceFailsNoOtherDeletionOfBatch(t *testing.T) {
	for _, tt := range []struct {
		status   int
		code     string
		requests int
		failed   []bool
	}{
		{http.StatusBadRequest, "InvalidParameter", 4, []bool{false, true, false}},
		{http.StatusNotFound, "NotFound", 4, []bool{false, true, false}},
		{http.StatusConflict, "ScopeLocked", 4, []bool{false, true, false}},
		{http.StatusUnprocessableEntity, "Unprocessable", 4, []bool{false, true, false}},
		{http.StatusForbidden, "AuthorizationFailed", 1, []bool{true, true, true}},
		{http.StatusConflict, "AnotherOperationInProgress", 1, []bool{true, true, true}},
	} {
		t.Run(fmt.Sprint(tt.status, " ", tt.code), func(t *testing.T) {
			requests := 0
			p := newTestProvider(t, func(w http.ResponseWriter, r *http.Request) {
				requests++
				body, err := io.ReadAll(r.Body)
				check.NoError(t, err)
				if strings.Contains(string(body), `"1"`) {
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(tt.status)
					fmt.Fprintf(w, `{"error":{"code":%q,"message":"x"}}`, tt.code)
				}
			})
			var deletions []deletion
			for _, name := range []string{"0", "1", "2"} {
				deletions = append(deletions, newTestDeletion(name))
			}
			where := inScaleSet("ci")
			where.resourceGroup = "demo"
			var failed []bool
			for _, out := range p.deleteBatchOrOneByOne(t.Context(), where, deletions) {
				failed = append(failed, out.err != nil)
			}
			check.Equal(t, tt.failed, failed)
			check.Is(t, tt.requests, requests)
		})
	}
}

func TestMaximumChangeTagRoundTrips(t *testing.T) {
	for _, n := range []maximumChange{{5, 6}, {1000, 999}, {0, 1}} {
		if got, ok := parseMaximumChange(n.String()); !ok || got != n {
			t.Errorf("%v is read as %v, %v", n, got, ok)
		}
	}
	for _, text := range []string{"", "5", "5 to", "a to b", "5 to 6 ", "-1 to 6", "12345 to 6"} {
		if got, ok := parseMaximumChange(text); ok {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}

const subscriptionID = "00000000-0000-0000-0000-000000000001"

// fakeCredential is a credential with a fixed token.
type fakeCredential struct{}

func (fakeCredential) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: "t", ExpiresOn: time.Now().Add(time.Hour)}, nil
}

// newTestProvider returns a provider that sends its ARM requests to a handler.
func newTestProvider(t *testing.T, arm http.HandlerFunc, groups ...GroupConfig) *Provider {
	t.Helper()
	server := httptest.NewTLSServer(arm)
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	raw := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	must.NoError(t, os.WriteFile(ca, raw, 0o600))
	now := cloud.Duration(0)
	p, err := New(Config{
		Subscription: subscriptionID, ResourceGroup: "demo", BatchWindow: &now, Groups: groups,
		Endpoints: &Endpoints{ResourceManager: server.URL, Authority: server.URL, CAFile: ca},
	}, Options{Credential: fakeCredential{}})
	must.NoError(t, err)
	return p
}

func TestI4InstanceWithOtherComputerNameIsNotDeleted(t *testing.T) {
	const id = "azure:///subscriptions/" + subscriptionID + "/resourceGroups/demo/providers/Microsoft.Compute/" +
		"virtualMachineScaleSets/aks-pool-12345678-vmss/virtualMachines/10"
	for name, taken := range map[string]bool{
		"aks-pool-12345678-vmss00000a": true, "AKS-POOL-12345678-VMSS00000A": true, "own-prefix00000b": true, "": true,
		"aks-pool-12345678-vmss00000b": false, "aks-pool-12345678-vmss000010": false,
	} {
		t.Run(name, func(t *testing.T) {
			var deleted atomic.Int32
			p := newTestProvider(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method != http.MethodGet {
					deleted.Add(1)
					w.Header().Set("Location", "https://"+r.Host+"/operations/1")
					w.WriteHeader(http.StatusAccepted)
					return
				}
				w.Header().Set("Content-Type", "application/json")
				_, _ = fmt.Fprintf(w, `{"id": %q, "name": "aks-pool-12345678-vmss_10", "properties": {"provisioningState": "Succeeded",
					"osProfile": {"computerName": %q}}}`, strings.TrimPrefix(id, "azure://"), name)
			})
			_, read := p.Instance(t.Context(), id)
			_, deletion := p.Delete(t.Context(), id)
			for _, err := range []error{read, deletion} {
				must.Not(t, taken && err != nil || !taken && cloud.RefusalOf(err) != cloud.Invalid, "accepted: %t: %v", taken, err)
				if !taken && (!strings.Contains(err.Error(), "instance 10") || !strings.Contains(err.Error(), name)) {
					t.Errorf("the error does not name both: %v", err)
				}
			}
			check.Not(t, (deleted.Load() == 1) != taken, "%d deletions were sent", deleted.Load())
		})
	}
}

// TestI5GrowNeedsAnETag has responses with and without an ETag.
func TestI5GrowNeedsAnETag(t *testing.T) {
	for name, etag := range map[string]string{"with an ETag": `"etag": "1", "eTag": "1",`, "without an ETag": ""} {
		for _, group := range []string{"pool-vmss", "ci"} {
			t.Run(name+", "+group, func(t *testing.T) {
				var conditions []string
				p := newTestProvider(t, func(w http.ResponseWriter, r *http.Request) {
					if r.Method != http.MethodGet {
						conditions = append(conditions, r.Header.Get("If-Match"))
					}
					w.Header().Set("Content-Type", "application/json")
					_, _ = fmt.Fprintf(w, `{%s "sku": {"name": "Standard_D2s_v5", "capacity": 5}, "properties": {%s "provisioningState": "Succeeded",
						"count": 5, "vmSize": "Standard_D2s_v5"}}`, etag, etag)
				}, GroupConfig{Name: "ci", ResourceGroup: "demo", Cluster: "demo", AgentPool: "ci"})
				_, err := p.Grow(t.Context(), group, cloud.LaunchRequest{Count: 1})
				if etag != "" {
					check.NoError(t, err)
					check.Equal(t, []string{"1"}, conditions)
					return
				}
				check.Not(t, !errors.Is(err, errIncomplete) || len(conditions) != 0, "%v after requests with %q; want no request", err, conditions)
			})
		}
	}
}

func TestI4UniqueIDIsTheVMID(t *testing.T) {
	const prefix = "/subscriptions/" + subscriptionID + "/resourceGroups/demo/providers/Microsoft.Compute/"
	for _, resource := range []string{prefix + "virtualMachineScaleSets/pool/virtualMachines/1", prefix + "virtualMachines/alone"} {
		p := newTestProvider(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = fmt.Fprintf(w, `{"id": %q, "name": "n", "properties": {"provisioningState": "Succeeded", "vmId": "4-2"}}`, resource)
		})
		m, err := p.Instance(t.Context(), "azure://"+resource)
		check.Not(t, err != nil || m.UniqueID != "4-2", "%s: unique ID %q, %v", resource, m.UniqueID, err)
	}
}

// TestI7FailedMemberListDeletesNothing has an AKS that denies only the list of the pool's instances. A deletion by the scale set
// would bypass AKS.
func TestI7FailedMemberListDeletesNothing(t *testing.T) {
	const id = "/subscriptions/" + subscriptionID + "/resourceGroups/demo/providers/Microsoft.Compute/virtualMachineScaleSets/ci/virtualMachines/0"
	p := newTestProvider(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.Method != http.MethodGet:
			t.Errorf("%s %s was sent", r.Method, r.URL.Path)
		case strings.HasSuffix(r.URL.Path, "/machines"):
			w.WriteHeader(http.StatusForbidden)
			fmt.Fprint(w, `{"error":{"code":"AuthorizationFailed","message":"x"}}`)
		default:
			fmt.Fprintf(w, `{"id":%q,"name":"ci_0","instanceId":"0","properties":{"provisioningState":"Succeeded","vmId":"v"}}`, id)
		}
	}, GroupConfig{Name: "ci", ResourceGroup: "demo", Cluster: "demo", AgentPool: "ci"})
	_, read := p.Instance(t.Context(), "azure://"+id)
	_, deletion := p.Delete(t.Context(), "azure://"+id)
	for _, err := range []error{read, deletion} {
		check.ErrorContains(t, err, "finding the agent pool of instance")
	}
}

// TestI7RedirectIsNotFollowed has a redirect to a host that finds nothing.
func TestI7RedirectIsNotFollowed(t *testing.T) {
	var requests atomic.Int32
	other := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"error":{"code":"ResourceNotFound","message":"gone"}}`)
	}))
	t.Cleanup(other.Close)
	p := newTestProvider(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL+r.URL.Path, http.StatusFound)
	})
	const id = "azure:///subscriptions/" + subscriptionID + "/resourceGroups/demo/providers/Microsoft.Compute/virtualMachineScaleSets/ci/virtualMachines/0"
	_, read := p.Instance(t.Context(), id)
	_, deletion := p.Delete(t.Context(), id)
	for _, err := range []error{read, deletion} {
		check.Not(t, err == nil || cloud.IsNotFound(err), "%v; want an error that is not NotFound", err)
	}
	check.Is(t, int32(0), requests.Load())
}

func TestI4AnswerAboutAnotherInstanceIsAnError(t *testing.T) {
	const prefix = "/subscriptions/" + subscriptionID + "/resourceGroups/demo/providers/Microsoft.Compute/"
	for asked, answered := range map[string]string{
		"virtualMachineScaleSets/ci/virtualMachines/0": "virtualMachineScaleSets/ci/virtualMachines/1", "virtualMachines/web": "virtualMachines/db",
	} {
		p := newTestProvider(t, func(w http.ResponseWriter, r *http.Request) {
			check.Is(t, http.MethodGet, r.Method)
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"id":%q,"name":"n","properties":{"provisioningState":"Succeeded","vmId":"v"}}`, prefix+answered)
		})
		_, read := p.Instance(t.Context(), "azure://"+prefix+asked)
		_, deletion := p.Delete(t.Context(), "azure://"+prefix+asked)
		for _, err := range []error{read, deletion} {
			check.ErrorContains(t, err, "the response is about azure://")
		}
	}
}

func TestI7IncompleteAnswerIsAnError(t *testing.T) {
	for _, tt := range []struct{ name, group, answer string }{
		{"a scale set without a capacity", "ci", `{"sku":{"name":"Standard_D2s_v5"},"properties":{"provisioningState":"Succeeded"}}`},
		{"a scale set without a SKU", "ci", `{"properties":{"provisioningState":"Succeeded"}}`},
		{"an agent pool without a count", "pool", `{"properties":{"provisioningState":"Succeeded"}}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := newTestProvider(t, func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				fmt.Fprint(w, tt.answer)
			}, GroupConfig{Name: "pool", ResourceGroup: "demo", Cluster: "demo", AgentPool: "pool"})
			_, size := p.Group(t.Context(), tt.group)
			// The list of the instances is a page without a value.
			_, list := p.Instances(t.Context(), tt.group)
			for _, err := range []error{size, list} {
				check.Not(t, !errors.Is(err, errIncomplete), "%v; want %v", err, errIncomplete)
			}
		})
	}
}
