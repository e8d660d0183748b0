package workload

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// The message of the API server's admission plugin ServiceAccount.
const noAccountResponse = `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403,"message":"pods \"p\" is ` +
	`forbidden: error looking up service account new/default: serviceaccount \"default\" not found"}`

// startRefusingServer starts a server that refuses the first requests, and answers all others with a pod.
func startRefusingServer(t *testing.T, first int, refusal string) (client *kubernetes.Clientset, requests *int) {
	t.Helper()
	requests = new(int)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if *requests++; *requests <= first {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(refusal))
			return
		}
		_, _ = w.Write([]byte(`{"kind":"Pod","apiVersion":"v1"}`))
	}))
	t.Cleanup(s.Close)
	return kubernetes.NewForConfigOrDie(&rest.Config{Host: s.URL, QPS: -1}), requests
}

func TestPodCreationWaitsForServiceAccount(t *testing.T) {
	t.Parallel()
	client, requests := startRefusingServer(t, 2, noAccountResponse)
	if err := Create(t.Context(), client, App{Namespace: "new", Name: "p"}.Pod()); err != nil || *requests != 3 {
		t.Errorf("after %d requests: %v, want success at the third", *requests, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	client, _ = startRefusingServer(t, 1000, noAccountResponse)
	err := Create(ctx, client, App{Namespace: "new", Name: "p"}.Pod())
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a missing account: %v, want %v", err, context.DeadlineExceeded)
	}
	client, requests = startRefusingServer(t, 1, strings.ReplaceAll(noAccountResponse, "error looking up", "there is a rule against the"))
	if err := Create(t.Context(), client, App{Namespace: "new", Name: "p"}.Pod()); err == nil || *requests != 1 {
		t.Errorf("a refusal for another reason was retried: %d requests, %v", *requests, err)
	}
}
