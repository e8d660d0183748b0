package guard_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/slipway-dev/slipway/internal/bootstrap"
)

// bootstrapToken returns a bootstrap token as Slipway creates it.
func bootstrapToken(changed func(*corev1.Secret)) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: "bootstrap-token-fedcba", Namespace: metav1.NamespaceSystem, Labels: map[string]string{bootstrap.TokenLabel: "node"},
		},
		Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": "fedcba", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"auth-extra-groups": bootstrap.BootstrapGroup, "expiration": time.Now().Add(time.Hour).Format(time.RFC3339),
		},
	}
	changed(s)
	return s
}

// expires makes a token expire after some time.
func expires(after time.Duration) func(*corev1.Secret) {
	return func(s *corev1.Secret) { s.StringData["expiration"] = time.Now().Add(after).Format(time.RFC3339) }
}

// tokenParts have the rights for bootstrap tokens.
var tokenParts = []string{"manager", "cloudpool"}

// bootstrapPolicy returns the name of the policy of a part, which its refusals contain.
func bootstrapPolicy(part string) string { return "'slipway-" + part + "-bootstrap'" }

func createSecret(changed func(*corev1.Secret)) attempt {
	return func(ctx context.Context, c kubernetes.Interface) error {
		_, err := c.CoreV1().Secrets(metav1.NamespaceSystem).Create(ctx, bootstrapToken(changed), metav1.CreateOptions{DryRun: try})
		return err
	}
}

func deleteSecret(name string) attempt {
	return func(ctx context.Context, c kubernetes.Interface) error {
		return c.CoreV1().Secrets(metav1.NamespaceSystem).Delete(ctx, name, metav1.DeleteOptions{DryRun: try})
	}
}

func TestTokensCreateOnlyBootstrapTokens(t *testing.T) {
	for _, part := range tokenParts {
		t.Run(part, func(t *testing.T) { testCreationOfBootstrapTokens(t, part) })
	}
}

func testCreationOfBootstrapTokens(t *testing.T, part string) {
	f := newFixture(t)
	stolen, policy := attempter{f, f.part(part)}, bootstrapPolicy(part)
	asServiceAccount := func(s *corev1.Secret) {
		s.Type, s.StringData = corev1.SecretTypeServiceAccountToken, nil
		s.Annotations = map[string]string{corev1.ServiceAccountNameKey: "clusterrole-aggregation-controller"}
	}
	stolen.await(t, map[string]attempt{policy: createSecret(asServiceAccount)})
	for _, ttl := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour} {
		stolen.expect(t, createSecret(expires(ttl)), "")
	}
	for name, changed := range map[string]func(*corev1.Secret){
		"token of a ServiceAccount": asServiceAccount,
		"Secret without a type":     func(s *corev1.Secret) { s.Type = "" },
		"another name":              func(s *corev1.Secret) { s.Name = "token-fedcba" },
		"no label":                  func(s *corev1.Secret) { s.Labels = nil },
		"no group":                  func(s *corev1.Secret) { delete(s.StringData, "auth-extra-groups") },
		"another group":             func(s *corev1.Secret) { s.StringData["auth-extra-groups"] = "system:bootstrappers:admins" },
		"additional group":          func(s *corev1.Secret) { s.StringData["auth-extra-groups"] += ",system:bootstrappers:admins" },
		"no expiration":             func(s *corev1.Secret) { delete(s.StringData, "expiration") },
		"expiration in a week":      expires(7 * 24 * time.Hour),
		"expiration in 100 years":   expires(100 * 365 * 24 * time.Hour),
	} {
		t.Run(name, func(t *testing.T) { stolen.expect(t, createSecret(changed), policy) })
	}
	// The policy cannot evaluate this value, so it refuses.
	if createSecret(func(s *corev1.Secret) { s.StringData["expiration"] = "not a time, but of its length" })(f.ctx, stolen.client) == nil {
		t.Error("an invalid expiration was admitted")
	}
}

func TestI3TokensDeleteOnlyBootstrapTokensOfSlipway(t *testing.T) {
	for _, part := range tokenParts {
		t.Run(part, func(t *testing.T) { testDeletionOfBootstrapTokens(t, part) })
	}
}

func testDeletionOfBootstrapTokens(t *testing.T, part string) {
	f := newFixture(t)
	stolen, policy := attempter{f, f.part(part)}, bootstrapPolicy(part)
	admin := f.Client().CoreV1().Secrets(metav1.NamespaceSystem)
	create := func(changed func(*corev1.Secret)) string {
		s, err := admin.Create(f.ctx, bootstrapToken(changed), metav1.CreateOptions{})
		f.check(err)
		t.Cleanup(func() { _ = admin.Delete(context.WithoutCancel(f.ctx), s.Name, metav1.DeleteOptions{}) })
		return s.Name
	}
	foreignSecret := create(func(s *corev1.Secret) { s.Name, s.Type = "credentials", corev1.SecretTypeOpaque })
	foreignToken := create(func(s *corev1.Secret) {
		s.Name, s.StringData["token-id"], s.Labels = "bootstrap-token-aaaaaa", "aaaaaa", nil
	})
	own := create(func(*corev1.Secret) {})
	stolen.await(t, map[string]attempt{policy: deleteSecret(foreignSecret)})
	stolen.expect(t, deleteSecret(foreignToken), policy)
	stolen.expect(t, deleteSecret(own), "")
}
