package azure

import (
	"context"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

const subscriptionID = "00000000-0000-0000-0000-000000000001"

// fakeCredential is a credential with a fixed token.
type fakeCredential struct{}

func (fakeCredential) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: "t", ExpiresOn: time.Now().Add(time.Hour)}, nil
}

// newTestProvider returns a provider that sends its ARM requests to a handler.
func newTestProvider(t *testing.T, arm http.HandlerFunc) *Provider {
	t.Helper()
	server := httptest.NewTLSServer(arm)
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	raw := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	must.NoError(t, os.WriteFile(ca, raw, 0o600))
	now := cloud.Duration(0)
	p, err := New(Config{
		Subscription: subscriptionID, ResourceGroup: "demo", BatchWindow: &now,
		Endpoints: &Endpoints{ResourceManager: server.URL, Authority: server.URL, CAFile: ca},
	}, Options{Credential: fakeCredential{}})
	must.NoError(t, err)
	return p
}
