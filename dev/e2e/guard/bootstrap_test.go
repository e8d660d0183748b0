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

// bootstrapToken returns a bootstrap token as the manager creates it.
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

// bootstrapPolicy is the name of the policy, which its refusals contain.
const bootstrapPolicy = "'slipway-manager-bootstrap'"

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

func TestManagerTokenCreatesOnlyBootstrapTokens(t *testing.T) {
	f := newFixture(t)
	manager := attempter{f, f.part("manager")}
	asServiceAccount := func(s *corev1.Secret) {
		s.Type, s.StringData = corev1.SecretTypeServiceAccountToken, nil
		s.Annotations = map[string]string{corev1.ServiceAccountNameKey: "clusterrole-aggregation-controller"}
	}
	manager.await(t, map[string]attempt{bootstrapPolicy: createSecret(asServiceAccount)})
	for _, ttl := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour} {
		manager.expect(t, createSecret(expires(ttl)), "")
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
		t.Run(name, func(t *testing.T) { manager.expect(t, createSecret(changed), bootstrapPolicy) })
	}
	// The policy cannot evaluate this value, so it refuses.
	if createSecret(func(s *corev1.Secret) { s.StringData["expiration"] = "not a time, but of its length" })(f.ctx, manager.client) == nil {
		t.Error("an invalid expiration was admitted")
	}
}

func TestI3ManagerTokenDeletesOnlyItsBootstrapTokens(t *testing.T) {
	f := newFixture(t)
	manager := attempter{f, f.part("manager")}
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
	manager.await(t, map[string]attempt{bootstrapPolicy: deleteSecret(foreignSecret)})
	manager.expect(t, deleteSecret(foreignToken), bootstrapPolicy)
	manager.expect(t, deleteSecret(own), "")
}
