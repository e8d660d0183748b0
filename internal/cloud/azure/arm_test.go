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

const subscription = "00000000-0000-0000-0000-000000000001"

// token is a credential that is taken everywhere.
type token struct{}

func (token) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	return azcore.AccessToken{Token: "t", ExpiresOn: time.Now().Add(time.Hour)}, nil
}

// talkingTo is a provider whose ARM is the handler.
func talkingTo(t *testing.T, arm http.HandlerFunc) *Provider {
	t.Helper()
	server := httptest.NewTLSServer(arm)
	t.Cleanup(server.Close)
	ca := filepath.Join(t.TempDir(), "ca.pem")
	raw := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	must.NoError(t, os.WriteFile(ca, raw, 0o600))
	now := cloud.Duration(0)
	p, err := New(Config{
		Subscription: subscription, ResourceGroup: "demo", BatchWindow: &now,
		Endpoints: &Endpoints{ResourceManager: server.URL, Authority: server.URL, CAFile: ca},
	}, Options{Credential: token{}})
	must.NoError(t, err)
	return p
}
