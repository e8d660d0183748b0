package openstack

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/slipway-dev/slipway/internal/cloud"
	"github.com/slipway-dev/slipway/internal/testing/must"
)

// newRotatingProvider returns a provider that authenticated with a secret from a file, and a function that replaces it.
func newRotatingProvider(t *testing.T, s *fakeOpenStack) (p *Provider, write func(secret string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "password")
	write = func(secret string) {
		must.NoError(t, os.WriteFile(path, []byte(secret+"\n"), 0o600))
	}
	write("first-secret")
	s.secret, s.project = "first-secret", "shop"
	c := validConfig()
	c.Auth.URL, c.Region, c.Auth.Password, c.Auth.PasswordFile = s.address+"/v3", "south", "", path
	p, err := New(c, Options{})
	must.NoError(t, err)
	if _, err := p.Instances(t.Context(), "workers"); err != nil {
		t.Fatal(err)
	}
	p.servers.Outdate() // force a request
	return p, write
}

func TestRotatedSecretIsReadWhenTheTokenRenews(t *testing.T) {
	s := newFakeOpenStack(t)
	p, write := newRotatingProvider(t, s)
	write("second-secret")
	s.secret, s.revoked = "second-secret", true
	if _, err := p.Instances(t.Context(), "workers"); err != nil || s.refusals != 0 {
		t.Errorf("%v after %d refused authentications", err, s.refusals)
	}
}

func TestRefusedSecretIsNotRetriedInALoop(t *testing.T) {
	s := newFakeOpenStack(t)
	p, _ := newRotatingProvider(t, s)
	s.secret, s.revoked = "second-secret", true
	for range 5 {
		if _, err := p.Instances(t.Context(), "workers"); cloud.RefusalOf(err) != cloud.NoRight {
			t.Errorf("%v, want the refusal %s", err, cloud.NoRight)
		}
	}
	if s.refusals != 1 {
		t.Errorf("the secret was tried %d times, want once", s.refusals)
	}
}

// TestI7CredentialOfAnotherProjectIsRefused prevents all servers from appearing to be gone.
func TestI7CredentialOfAnotherProjectIsRefused(t *testing.T) {
	s := newFakeOpenStack(t)
	p, write := newRotatingProvider(t, s)
	write("second-secret")
	s.secret, s.revoked, s.project = "second-secret", true, "blog"
	if _, err := p.Instances(t.Context(), "workers"); err == nil {
		t.Error("the credential of another project is accepted")
	}
}
