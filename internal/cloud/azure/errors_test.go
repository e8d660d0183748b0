package azure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/runtime"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/check"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

func TestAzureErrorsMapToProviderErrors(t *testing.T) {
	nested := func(code, message string) string {
		return fmt.Sprintf(`{"error":{"code":%q,"message":%q}}`, code, message)
	}
	for _, tc := range []struct {
		name    string
		status  int
		header  http.Header
		body    string
		refusal cloud.Refusal
		after   time.Duration
		says    string
	}{
		{
			"missing permission", 403, nil, nested("AuthorizationFailed", "The client 'x' with object id 'y' does not have authorization "+
				"to perform action 'Microsoft.Compute/virtualMachineScaleSets/delete/action' over scope '/subscriptions/s' or the scope is invalid."),
			cloud.NoRight, 0, "the credential lacks Microsoft.Compute/virtualMachineScaleSets/delete/action on /subscriptions/s",
		},
		{"expired token", 401, nil, nested("ExpiredAuthenticationToken", "x"), cloud.NoRight, 0, "ExpiredAuthenticationToken"},
		{"lock", 409, nil, nested("ScopeLocked", "locked"), cloud.Protected, 0, "ScopeLocked"},
		{"protection", 409, nil, nested("OperationNotAllowed", "ProtectFromScaleSetActions is enabled"), cloud.Protected, 0, ""},
		{"quota", 409, nil, nested("OperationNotAllowed", "exceeding approved Total Regional Cores quota"), cloud.NoQuota, 0, ""},
		{"quota of AKS", 400, nil, nested("ErrCode_InsufficientVCPUQuota", "Insufficient vcpu quota requested 8, remaining 4"), cloud.NoQuota, 0, ""},
		{"quota of a template", 400, nil, nested("InvalidTemplateDeployment", "The template deployment is not valid."), cloud.NoQuota, 0, ""},
		{
			"capacity of a template", 400, nil, `{"error":{"code":"InvalidTemplateDeployment","message":"The template deployment is not valid.",` +
				`"details":[{"code":"SkuNotAvailable","message":"not available in westeurope"}]}}`,
			cloud.NoCapacity, 0, "not available in westeurope",
		},
		{
			"policy of a template", 400, nil, `{"code":"InvalidTemplateDeployment","message":"x","details":[{"code":"RequestDisallowedByPolicy","message":"y"}]}`,
			cloud.Invalid, 0, "RequestDisallowedByPolicy",
		},
		{
			"capacity, reported by AKS", 0, nil, `{"status":"Failed","error":{"code":"ReconcileVMSSAgentPoolFailed","message":"autorest/azure: ` +
				`Service returned an error. Status=<nil> Code=\"ZonalAllocationFailed\" Message=\"Allocation failed.\""}}`,
			cloud.NoCapacity, 0, "ZonalAllocationFailed",
		},
		{
			"quota, reported by AKS", 0, nil, `{"error":{"code":"ReconcileVMSSAgentPoolFailed","message":"Code=\"OperationNotAllowed\" Message=\"` +
				`Operation could not be completed as it results in exceeding approved standardDv3Family Cores quota.\""}}`,
			cloud.NoQuota, 0, "",
		},
		{"no capacity", 409, nil, nested("ZonalAllocationFailed", "x"), cloud.NoCapacity, 0, ""},
		{"no such subscription", 404, nil, nested("SubscriptionNotFound", "x"), cloud.Invalid, 0, "the credential is of another tenant"},
		{"no such resource group", 404, nil, nested("ResourceGroupNotFound", "x"), cloud.Invalid, 0, "the resource group does not exist"},
		{"a bad request", 400, nil, nested("InvalidParameter", "x"), cloud.Invalid, 0, ""},
		{"changed since it was read", 412, nil, `{"code":"EtagMismatch","message":"x"}`, "", changedRetryDelay, "has changed since it was read"},
		{"throttled", 429, http.Header{"Retry-After": {"7"}}, nested("TooManyRequests", "x"), "", 7 * time.Second, ""},
		{"throttled, without a time", 429, nil, "", "", defaultRetryDelay, ""},
		{"throttled, in milliseconds too", 429, http.Header{"Retry-After": {"7"}, "X-Ms-Retry-After-Ms": {"6500"}}, "", "", 6500 * time.Millisecond, ""},
		{"throttled, delay capped", 429, http.Header{"Retry-After": {"99999999"}}, "", "", time.Hour, ""},
		{"unavailable with Retry-After", 503, http.Header{"Retry-After": {"3"}}, "", "", 3 * time.Second, ""},
		{
			"AKS is busy", 409, nil, `{"code":"OperationNotAllowed","message":"Another agentpool operation is in progress"}`,
			"", busyRetryDelay, "Another agentpool operation",
		},
		{"compute is busy", 409, nil, nested("AnotherOperationInProgress", "x"), "", busyRetryDelay, ""},
		{"server error", 500, nil, nested("InternalServerError", "x"), "", 0, "500 InternalServerError"},
		{"page of a proxy", 404, nil, "<html>\x1b[31m</html>", "", 0, "404: <html> [31m</html>"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := toProviderError(parseErrorBody(tc.status, []byte(tc.body)), tc.header)
			var throttled *cloud.ThrottledError
			after := time.Duration(0)
			if errors.As(err, &throttled) {
				after = throttled.RetryAfter
			}
			if cloud.RefusalOf(err) != tc.refusal || after != tc.after || !strings.Contains(err.Error(), tc.says) || cloud.IsNotFound(err) {
				t.Errorf("error %v (refusal %q, after %v), want %q, %v and text %q",
					err, cloud.RefusalOf(err), after, tc.refusal, tc.after, tc.says)
			}
		})
	}
}

func TestI7OnlyAzureErrorCodeMeansGone(t *testing.T) {
	for body, want := range map[string]bool{
		`{"error":{"code":"ResourceNotFound","message":"x"}}`:       true,
		`{"code":"NotFound","message":"x"}`:                         true,
		`{"error":{"code":"ParentResourceNotFound","message":"x"}}`: true,
		`{"code":"NotFound","message":"The entity was not found."}`: true,
		`{"code":"NotFound","message":"Operation x is not found."}`: false,
		`{"code":"NotFound","message":"no such api-version"}`:       false,
		`{"error":{"code":"SubscriptionNotFound","message":"x"}}`:   false,
		`{"error":{"code":"ResourceGroupNotFound","message":"x"}}`:  false,
		`{"error":{"code":"InvalidResourceType","message":"x"}}`:    false,
		`{"error":"ResourceNotFound"}`:                              false,
		`{"message":"ResourceNotFound"}`:                            false,
		`ResourceNotFound`:                                          false,
		`{}`:                                                        false,
		``:                                                          false,
	} {
		err := fmt.Errorf("reading: %w", toProviderError(parseErrorBody(http.StatusNotFound, []byte(body)), nil))
		if isGone(err) != want {
			t.Errorf("a 404 with %s is gone: %v, want %v", body, !want, want)
		}
		for _, status := range []int{200, 400, 403, 409, 410, 500} {
			check.Not(t, isGone(toProviderError(parseErrorBody(status, []byte(body)), nil)), "a %d with %s is gone", status, body)
		}
	}
}

func FuzzParseError(f *testing.F) {
	f.Add(404, `{"error":{"code":"ResourceNotFound","message":"x"}}`)
	f.Add(409, `{"code":"OperationNotAllowed","message":"Another operation is in progress"}`)
	f.Add(403, `{"error":{"code":"AuthorizationFailed","message":"perform action 'a' over scope 'b'"}}`)
	f.Add(500, `<html>`)
	f.Fuzz(func(t *testing.T, status int, body string) {
		err := toProviderError(parseErrorBody(status, []byte(body)), nil)
		text := err.Error()
		if len(text) > 4*(maxMessageLength+maxCodeLength) || !utf8.ValidString(text) || strings.ContainsAny(text, "\x00\x1b\n\r") {
			t.Errorf("the error of %d %q is %q", status, body, text)
		}
		check.Not(t, isGone(err) && (status != http.StatusNotFound || !json.Valid([]byte(body))), "I7: %d %q is gone", status, body)
	})
}

func FuzzDecodeOperation(f *testing.F) {
	const host = "management.azure.com"
	f.Add(`{"url":"https://management.azure.com/subscriptions/s/providers/p/operations/1?api-version=1","machine":"azure:///x"}`)
	f.Add(`{"url":"https://management.azure.com:443/subscriptions/s/providers/p/operations/1"}`)
	f.Add(`{"url":"https://management.azure.com@example.com/"}`)
	f.Add(`{"url":"https://example.com/?https://management.azure.com/"}`)
	f.Add(`{"machine":"azure:///x"}{"url":"https://example.com"}`)
	f.Fuzz(func(t *testing.T, id string) {
		o, err := decodeOperation(id, host)
		if err != nil {
			check.Not(t, o != (operation{}), "both %+v and %v", o, err)
			return
		}
		if o.URL != "" {
			request, err := http.NewRequest(http.MethodGet, o.URL, nil)
			if err == nil && (!strings.EqualFold(request.URL.Hostname(), host) ||
				request.URL.Port() != "" && request.URL.Port() != "443" || request.URL.Scheme != "https" || request.URL.User != nil) {
				t.Errorf("operation %q leads to %s", id, request.URL)
			}
		}
		if again, err := decodeOperation(o.toCloudOperation(time.Time{}).ID, host); err != nil || again != o {
			t.Errorf("%q is %+v, written again %+v, %v", id, o, again, err)
		}
	})
}

func FuzzReadOperation(f *testing.F) {
	f.Add(200, `{"status":"InProgress"}`)
	f.Add(200, `{"status":"Failed","error":{"code":"x","message":"y"}}`)
	f.Add(404, `{"error":{"code":"OperationNotFound"}}`)
	f.Add(202, ``)
	f.Fuzz(func(t *testing.T, code int, body string) {
		status, forgotten, err := parseStatusResponse(code, http.Header{}, []byte(body))
		switch {
		case err != nil && (status.Done || forgotten):
			t.Errorf("%d %q: both %+v and %v", code, body, status, err)
		case forgotten && code != http.StatusNotFound:
			t.Errorf("%d %q is forgotten", code, body)
		case status.Done && code >= 500:
			t.Errorf("%d %q is done", code, body)
		}
	})
}

func TestOperationFailsOn4xxResponse(t *testing.T) {
	for code := 400; code < 500; code++ {
		status, forgotten, err := parseStatusResponse(code, http.Header{}, []byte(`{"error":{"code":"VMExtensionProvisioningError","message":"x"}}`))
		switch code {
		case 401, 403, 407, 408, 429:
			check.Not(t, err == nil || status.Done, "%d: %+v, %v; want an error, because it is not about the operation", code, status, err)
		case 404:
			check.Not(t, err != nil || !forgotten, "%d: %+v, %v; want it forgotten", code, status, err)
		default:
			check.Not(t, err != nil || !status.Done || status.Err == nil || forgotten, "%d: %+v, %v; want it done, and failed", code, status, err)
		}
	}
	for _, code := range []string{"OperationPreempted", "AnotherOperationInProgress", "Conflict"} {
		status, _, err := parseStatusResponse(409, http.Header{}, []byte(`{"error":{"code":"`+code+`","message":"x"}}`))
		check.Not(t, err != nil || !status.Done || status.Err == nil, "%s: %+v, %v; want it done, and failed", code, status, err)
	}
}

// TestI5PreemptedLaunchIsNotAFailure has two launches of one group. The size counts both, and the newer operation makes
// the instances.
func TestI5PreemptedLaunchIsNotAFailure(t *testing.T) {
	const id = "/subscriptions/" + subscriptionID + "/resourceGroups/demo/providers/Microsoft.Compute/virtualMachineScaleSets/ci/virtualMachines/0"
	const canceled = `{"status":"Canceled","error":{"code":"OperationPreempted","message":"preempted by a more recent operation"}}`
	for name, c := range map[string]struct {
		code          int
		body, machine string
		failed        bool
	}{
		"a launch":                {200, canceled, "", false},
		"a launch, 409":           {409, `{"error":{"code":"OperationPreempted","message":"x"}}`, "", false},
		"a launch without quota":  {200, `{"status":"Failed","error":{"code":"QuotaExceeded","message":"x"}}`, "", true},
		"a deletion":              {200, canceled, "azure://" + id, true}, // its instance is still there
		"a launch, just canceled": {200, `{"status":"Canceled"}`, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			p := newTestProvider(t, func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				if r.URL.Path == "/operation" {
					w.WriteHeader(c.code)
					fmt.Fprint(w, c.body)
					return
				}
				fmt.Fprintf(w, `{"id":%q,"name":"ci_0","instanceId":"0","properties":{"provisioningState":"Succeeded","vmId":"v",
					"timeCreated":"2026-01-02T03:04:05Z","osProfile":{"computerName":"ci000000"}}}`, id)
			})
			op := operation{URL: "https://" + p.clients.armHost + "/operation", Machine: c.machine}.toCloudOperation(time.Now())
			status, err := p.Status(t.Context(), op)
			check.Not(t, err != nil || !status.Done || (status.Err != nil) != c.failed, "%+v, %v; want it failed: %t", status, err, c.failed)
			if _, status, err = p.readOperation(t.Context(), op); err != nil || status.Err == nil {
				t.Errorf("a change of the maximum: %+v, %v; want it failed", status, err)
			}
		})
	}
}

func TestOperationURLOnOtherHostIsRefused(t *testing.T) {
	for _, address := range []string{
		"https://example.com/operations/1", "http://management.azure.com/operations/1", "//management.azure.com/x",
		"https://management.azure.com.example.com/", "https://x@management.azure.com/", "https://management.azure.com:444/", "::",
	} {
		id, err := json.Marshal(operation{URL: address})
		must.NoError(t, err)
		if o, err := decodeOperation(string(id), "management.azure.com"); err == nil {
			t.Errorf("%q is taken as %+v", address, o)
		}
	}
}

// ARM adds the default port to the link to the next page, and to some status URLs, see
// https://github.com/Azure/azure-sdk-for-java/issues/36506.
func TestCredentialIsSentOnlyToARM(t *testing.T) {
	const arm = "https://management.azure.com"
	for _, c := range []struct {
		endpoint, address string
		same              bool
	}{
		{arm, "https://management.azure.com/subscriptions/s", true},
		{arm, "https://management.azure.com:443/subscriptions/s?$skiptoken=x", true},
		{arm, "https://Management.Azure.COM:443/subscriptions/s", true},
		{arm, "HTTPS://management.azure.com:/subscriptions/s", true},
		{arm + ":443/", "https://management.azure.com/subscriptions/s", true},
		{"https://arm.local:8443", "https://ARM.local:8443/subscriptions/s", true},
		{"https://[::1]", "https://[::1]:443/subscriptions/s", true},
		{"http://arm.local", "http://arm.local:80/subscriptions/s", true},

		{arm, "https://management.azure.com:80/subscriptions/s", false},
		{arm, "https://management.azure.com:4430/subscriptions/s", false},
		{arm, "http://management.azure.com/subscriptions/s", false},
		{arm, "http://management.azure.com:443/subscriptions/s", false},
		{arm, "https://management.azure.com.example.com:443/subscriptions/s", false},
		{arm, "https://management.azure.com:443@example.com/subscriptions/s", false},
		{arm, "https://example.com:443/subscriptions/s", false},
		{"https://arm.local:8443", "https://arm.local/subscriptions/s", false},
		{"https://arm.local:8443", "https://arm.local:443/subscriptions/s", false},
		{"http://arm.local", "http://arm.local:443/subscriptions/s", false},
	} {
		t.Run(c.endpoint+" "+c.address, func(t *testing.T) {
			endpoint, err := url.Parse(c.endpoint)
			must.NoError(t, err)
			wire := &emptyARM{}
			pipeline := runtime.NewPipeline("test", "v1.0.0", runtime.PipelineOptions{PerCall: []policy.Policy{singleHostPolicy{endpoint}}},
				&policy.ClientOptions{Transport: wire})
			request, err := runtime.NewRequest(t.Context(), http.MethodGet, c.address)
			must.NoError(t, err)
			response, err := pipeline.Do(request)
			if err == nil {
				_ = response.Body.Close()
			}
			if is := err == nil && wire.asked == 1; is != c.same || !is && wire.asked > 0 {
				t.Errorf("sent: %t, %d requests, error %v; want %t", is, wire.asked, err, c.same)
			}
			if endpoint.Scheme != "https" {
				return
			}
			id, err := json.Marshal(operation{URL: c.address})
			must.NoError(t, err)
			if _, err := decodeOperation(string(id), endpoint.Host); (err == nil) != c.same {
				t.Errorf("operation with this URL: %v; want accepted: %t", err, c.same)
			}
		})
	}
}

// emptyARM answers every request with an empty object.
type emptyARM struct{ asked int }

func (c *emptyARM) Do(r *http.Request) (*http.Response, error) {
	c.asked++
	return &http.Response{StatusCode: http.StatusOK, Request: r, Body: io.NopCloser(strings.NewReader("{}"))}, nil
}
