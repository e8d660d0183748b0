package doctor

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/slipway-dev/slipway/internal/testing/must"
	"github.com/slipway-dev/slipway/internal/testing/virtual"
)

// slowPods is an API server that is slow for each page of the pods, and forbids everything else.
type slowPods struct {
	t     *testing.T
	pages int
	takes time.Duration
}

func (s slowPods) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path != "/api/v1/pods" {
		w.WriteHeader(http.StatusForbidden)
		_, _ = w.WriteString(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","message":"no","code":403}`)
		return w.Result(), nil
	}
	select {
	case <-time.After(s.takes):
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	page, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	list := corev1.PodList{
		TypeMeta: metav1.TypeMeta{Kind: "PodList", APIVersion: "v1"},
		Items:    []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-" + strconv.Itoa(page)}}},
	}
	if page+1 < s.pages {
		list.Continue = strconv.Itoa(page + 1)
	}
	if err := json.NewEncoder(w).Encode(list); err != nil {
		s.t.Error(err)
	}
	return w.Result(), nil
}

func TestEachListPageHasItsOwnTimeout(t *testing.T) {
	for _, tt := range []struct {
		name    string
		takes   time.Duration
		timeout time.Duration // set by the caller
		read    bool
	}{
		{"all of them longer than one may take", requestTimeout * 2 / 3, 0, true},
		{"one longer than that", requestTimeout * 2, 0, false},
		{"one longer than that, and the caller has more patience", requestTimeout * 2, requestTimeout * 3, true},
		{"one longer than the caller has patience", requestTimeout / 2, requestTimeout / 3, false},
	} {
		t.Run(tt.name, virtual.InVirtualTime(func(t *testing.T) {
			config := &rest.Config{
				Host: "http://apiserver.test", QPS: -1, Timeout: tt.timeout, Transport: slowPods{t, 4, tt.takes},
			}
			f, err := ReadFacts(t.Context(), config, Options{})
			must.NoError(t, err)
			if err := f.ReadErrors[podsReading]; (err == nil) != tt.read || tt.read && len(f.Pods) != 4 {
				t.Errorf("%d pods, %v", len(f.Pods), err)
			}
		}))
	}
}

// fixedResponse is an API server with one answer to everything, or none.
type fixedResponse struct{ code int }

func (a fixedResponse) RoundTrip(*http.Request) (*http.Response, error) {
	if a.code == 0 {
		return nil, errors.New("connection refused")
	}
	w := httptest.NewRecorder()
	w.WriteHeader(a.code)
	return w.Result(), nil
}

func TestUnreachableAPIServerIsAnError(t *testing.T) {
	for name, tt := range map[string]struct {
		code   int
		looked bool
		want   string
	}{
		"out of reach":         {0, false, "connection refused"},
		"credentials rejected": {http.StatusUnauthorized, false, "credentials"},
		"it allows nothing":    {http.StatusForbidden, true, ""},
		"it has none of that":  {http.StatusNotFound, true, ""},
		"it is ill":            {http.StatusInternalServerError, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := ReadFacts(t.Context(), &rest.Config{Host: "http://apiserver.test", QPS: -1, Transport: fixedResponse{tt.code}}, Options{})
			if looked := err == nil; looked != tt.looked {
				t.Fatalf("%v", err)
			}
			if err != nil && (!strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "http://apiserver.test")) {
				t.Errorf("the error names neither server nor cause: %v", err)
			}
		})
	}
}
