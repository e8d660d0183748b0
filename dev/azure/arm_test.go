package azure

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/slipway-dev/slipway/internal/testing/must"
)

// armClient sends raw requests to an ARM over TLS, without the SDK.
type armClient struct {
	*ARM
	server *ARMServer
	http   *http.Client
	token  string
}

func newARM(t *testing.T, o ARMOptions, emulated Options) *armClient {
	t.Helper()
	e := New(emulated)
	t.Cleanup(e.Close)
	a := NewARM(e, o)
	server, err := a.Serve("127.0.0.1:0")
	must.NoError(t, err)
	t.Cleanup(func() { _ = server.Close() })
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(server.CA)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	t.Cleanup(transport.CloseIdleConnections)
	return &armClient{ARM: a, server: server, http: &http.Client{Transport: transport}, token: a.IssueToken()}
}

// answerHead is a response without its body.
type answerHead struct {
	StatusCode int
	Header     http.Header
}

// sendRequest sends a request with the token, and returns the response and its parsed body.
func (c *armClient) sendRequest(t *testing.T, method, path, body string) (answerHead, map[string]any) {
	t.Helper()
	address := path
	if strings.HasPrefix(path, "/") {
		address = c.server.URL.String() + path
	}
	r, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	must.NoError(t, err)
	r.Header.Set("Authorization", "Bearer "+c.token)
	response, err := c.http.Do(r)
	must.NoError(t, err)
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(response.Body)
	must.NoError(t, err)
	var answer map[string]any
	if len(text) > 0 && json.Unmarshal(text, &answer) != nil {
		t.Fatalf("%s %s answered %q", method, path, text)
	}
	return answerHead{response.StatusCode, response.Header}, answer
}

func errorCode(answer map[string]any) string {
	if inner, ok := answer["error"].(map[string]any); ok {
		answer = inner
	}
	code, _ := answer["code"].(string)
	return code
}

const (
	armVersion = "?api-version=2025-04-01"
	groupPath  = "/subscriptions/" + DefaultSubscription + "/resourceGroups/" + DefaultResourceGroup
	setPath    = groupPath + "/providers/Microsoft.Compute/virtualMachineScaleSets/" + testSet
)

func TestARMRefusesInvalidRequests(t *testing.T) {
	c := newARM(t, ARMOptions{}, Options{})
	c.AddScaleSet(ScaleSetSpec{Name: testSet}, 1)
	for _, tt := range []struct {
		name, method, path, body string
		status                   int
		code                     string
	}{
		{"no api-version", "GET", setPath, "", 400, "MissingApiVersionParameter"},
		{"another subscription", "GET", strings.Replace(setPath, DefaultSubscription, "other", 1) + armVersion, "", 404, "SubscriptionNotFound"},
		{"no such group", "GET", strings.Replace(setPath, DefaultResourceGroup, "other", 1) + armVersion, "", 404, "ResourceGroupNotFound"},
		{"no such set", "GET", setPath + "x" + armVersion, "", 404, "ResourceNotFound"},
		{"no such instance", "GET", setPath + "/virtualMachines/9" + armVersion, "", 404, "ResourceNotFound"},
		{"no such type", "GET", groupPath + "/providers/Microsoft.Compute/disks/x" + armVersion, "", 404, "InvalidResourceType"},
		{"a missing instance", "POST", setPath + "/delete" + armVersion, `{"instanceIds":["0","9"]}`, 400, "InvalidParameter"},
		{"nothing to delete", "POST", setPath + "/delete" + armVersion, `{}`, 400, "InvalidParameter"},
		{"invalid JSON", "POST", setPath + "/delete" + armVersion, `{`, 400, "InvalidRequestContent"},
		{"too many", "PATCH", setPath + armVersion, `{"sku":{"capacity":1001}}`, 400, "InvalidParameter"},
		{"no such operation", "GET", "/subscriptions/" + DefaultSubscription + "/providers/Microsoft.Compute/locations/x/operations/1" + armVersion, "", 404, "OperationNotFound"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			response, answer := c.sendRequest(t, tt.method, tt.path, tt.body)
			if response.StatusCode != tt.status || errorCode(answer) != tt.code || response.Header.Get("x-ms-request-id") == "" {
				t.Errorf("answered %d %v, want %d %s with a request ID", response.StatusCode, answer, tt.status, tt.code)
			}
		})
	}
	if len(c.VMs()) != 1 || c.Capacity(testSet) != 1 {
		t.Error("a refused request had an effect")
	}
	c.token = "unknown"
	if response, answer := c.sendRequest(t, "GET", setPath+armVersion, ""); response.StatusCode != http.StatusUnauthorized || errorCode(answer) != "InvalidAuthenticationToken" {
		t.Errorf("an unknown token: %d %v", response.StatusCode, answer)
	}
}

func TestARMIgnoresLetterCase(t *testing.T) {
	c := newARM(t, ARMOptions{}, Options{})
	c.AddScaleSet(ScaleSetSpec{Name: testSet}, 1)
	for _, path := range []string{strings.ToLower(setPath), strings.ToUpper(setPath)} {
		if response, answer := c.sendRequest(t, "GET", path+"/VirtualMachines/0"+armVersion, ""); response.StatusCode != http.StatusOK {
			t.Errorf("%s: %d %v", path, response.StatusCode, answer)
		}
	}
}

func TestDeletionPowersOffAndPreemptReducesCapacity(t *testing.T) {
	power := newPowerRecorder()
	c := newARM(t, ARMOptions{}, Options{Machines: power})
	c.AddScaleSet(ScaleSetSpec{Name: testSet}, 3)
	c.sendRequest(t, "DELETE", setPath+"/virtualMachines/1"+armVersion, "")
	must.NoError(t, c.AwaitVMs(t.Context(), func(vms []VM) bool { return len(vms) == 2 }))
	if log := strings.Join(power.recorded(), "\n"); !strings.HasSuffix(log, testSet+"_1 off") {
		t.Errorf("the deleted machine has power: %s", log)
	}
	record, err := c.emulator.Announce(Announcement{Type: Preempt, Resources: []string{testSet + "_0"}})
	if err == nil {
		err = c.emulator.StartEvent(record.EventID)
	}
	must.NoError(t, err)
	must.NoError(t, c.AwaitVMs(t.Context(), func(vms []VM) bool { return len(vms) == 1 }))
	if c.Capacity(testSet) != 1 || len(power.recorded()) != 2 {
		t.Errorf("the capacity is %d after a preemption, power: %q", c.Capacity(testSet), power.recorded())
	}
}

// joinRecorder is a Joiner that records the machines that join.
type joinRecorder chan VM

func (j joinRecorder) JoinNode(_ context.Context, vm VM) error {
	j <- vm
	return nil
}

func TestNewMachineJoinsUnderOwnName(t *testing.T) {
	nodes := make(joinRecorder, 1)
	c := newARM(t, ARMOptions{Joiner: nodes}, Options{})
	c.AddScaleSet(ScaleSetSpec{Name: testSet}, 10)
	c.sendRequest(t, "PATCH", setPath+armVersion, `{"sku":{"capacity":11}}`)
	vm := <-nodes
	if vm.ComputerName != strings.ToLower(testSet)+"00000a" || vm.InstanceID != "10" || vm.Resource != testSet+"_10" {
		t.Errorf("%+v joined, want instance 10 with a name ending in 00000a", vm)
	}
	if response, answer := c.sendRequest(t, "PATCH", setPath+armVersion, `{"sku":{"capacity":9}}`); response.StatusCode != http.StatusOK {
		t.Errorf("shrinking: %d %v", response.StatusCode, answer)
	}
	must.NoError(t, c.AwaitVMs(t.Context(), func(vms []VM) bool { return len(vms) == 9 }))
}

func TestARMControlAPI(t *testing.T) {
	c := newARM(t, ARMOptions{}, Options{})
	c.AddScaleSet(ScaleSetSpec{Name: testSet}, 2)
	control := httptest.NewServer(c.emulator.Handler())
	t.Cleanup(control.Close)
	send := func(method, path, body string) (int, string) {
		t.Helper()
		r, err := http.NewRequestWithContext(t.Context(), method, control.URL+path, bytes.NewReader([]byte(body)))
		must.NoError(t, err)
		response, err := http.DefaultClient.Do(r)
		must.NoError(t, err)
		defer func() { _ = response.Body.Close() }()
		text, err := io.ReadAll(response.Body)
		must.NoError(t, err)
		return response.StatusCode, string(text)
	}
	for _, tt := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "/emulator/arm/faults", `{"kind":"throttled","retryAfter":"7s","times":1}`, 200, `"retryAfter":"7s"`},
		{"POST", "/emulator/arm/faults", `[{"kind":"explode"}]`, 400, `kind \"explode\" is invalid`},
		{"POST", "/emulator/arm/faults", `{"kind":"status","status":200}`, 400, "must be 400 to 599"},
		{"POST", "/emulator/arm/faults", `{"kind":"hang","colour":"red"}`, 400, "colour"},
		{"GET", "/emulator/arm/faults", "", 200, `"kind":"throttled"`},
		{"POST", "/emulator/arm/machines/" + testSet + "_1/lose", "", 200, "{}"},
		{"POST", "/emulator/arm/machines/missing/lose", "", 404, "no such resource"},
		{"GET", "/emulator/arm/state", "", 200, `"resource":"` + testSet + `_0"`},
		{"POST", "/emulator/arm/operations/forget", "", 200, "{}"},
	} {
		if status, text := send(tt.method, tt.path, tt.body); status != tt.status || !strings.Contains(text, tt.says) {
			t.Errorf("%s %s %s: %d %s, want %d with %s", tt.method, tt.path, tt.body, status, text, tt.status, tt.says)
		}
	}
	if response, _ := c.sendRequest(t, "GET", setPath+armVersion, ""); response.StatusCode != http.StatusTooManyRequests || response.Header.Get("Retry-After") != "7" {
		t.Errorf("the injected fault: %d %v", response.StatusCode, response.Header)
	}
	if status, text := send("GET", "/emulator/arm/requests", ""); status != 200 || !strings.Contains(text, `"status":429`) {
		t.Errorf("the requests: %d %s", status, text)
	}
	if _, text := send("DELETE", "/emulator/arm/faults", ""); text != "[]" {
		t.Errorf("after removal the faults are %s", text)
	}
}

func FuzzParseARMFaults(f *testing.F) {
	f.Add([]byte(`{"kind":"throttled","retryAfter":"7s","times":3}`))
	f.Add([]byte(`[{"kind":"deletion-fails","resource":"x"},{"kind":"pass","for":"1m"}]`))
	f.Fuzz(func(t *testing.T, body []byte) {
		faults, err := ParseARMFaults(body)
		if err != nil {
			if !errors.Is(err, ErrInvalid) || faults != nil {
				t.Errorf("%q: %v and %v", body, faults, err)
			}
			return
		}
		again, err := ParseARMFaults(encodeJSON(toFaultsJSON(faults)))
		if err != nil || len(again) != len(faults) {
			t.Errorf("%q parses as %v; encoded and parsed again: %v, %v", body, faults, again, err)
		}
	})
}
