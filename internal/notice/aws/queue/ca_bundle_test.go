package queue

import (
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/aws/aws-sdk-go-v2/service/sqs"
)

func TestWrappedClientTrustsCABundle(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{"AWS_CA_BUNDLE": file, "AWS_ACCESS_KEY_ID": "A", "AWS_SECRET_ACCESS_KEY": "s", "AWS_EC2_METADATA_DISABLED": "true"} {
		t.Setenv(key, value)
	}
	c := NewDefaultConfig()
	c.URL, c.Region = server.URL+"/123456789012/notices", "eu-west-1"
	requests := 0
	clients, err := NewClients(t.Context(), c, func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) { requests++; return next.RoundTrip(r) })
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clients.SQS.ReceiveMessage(t.Context(), &sqs.ReceiveMessageInput{QueueUrl: &c.URL}); err != nil || requests != 1 {
		t.Errorf("%v after %d requests", err, requests)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
