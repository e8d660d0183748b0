package cloudpool_test

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	emulator "github.com/slipway-dev/slipway/dev/cloudpool"
	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
)

// token creates an account with some permissions on a pool's scale, and returns its token.
func (f *fixture) token(account string, verbs ...string) string {
	f.t.Helper()
	_, err := f.Client().CoreV1().ServiceAccounts(f.name).Create(f.ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
	f.check(err)
	if len(verbs) > 0 {
		role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: f.name + "-" + account}, Rules: []rbacv1.PolicyRule{{
			APIGroups: []string{"slipway.dev"}, Resources: []string{"nodegroups/scale"}, ResourceNames: []string{f.name}, Verbs: verbs,
		}}}
		_, err = f.Client().RbacV1().ClusterRoles().Create(f.ctx, role, metav1.CreateOptions{})
		f.check(err)
		_, err = f.Client().RbacV1().ClusterRoleBindings().Create(f.ctx, &rbacv1.ClusterRoleBinding{
			ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: account, Namespace: f.name}},
		}, metav1.CreateOptions{})
		f.check(err)
		f.check(f.AwaitPermissions(f.ctx, f.name, account, role.Name))
	}
	return f.tokenFor(account, "slipway-cloudpool")
}

// tokenFor returns a token of an account for the given audiences, as a header. Without audiences, the token is for the
// API server.
func (f *fixture) tokenFor(account string, audiences ...string) string {
	f.t.Helper()
	made, err := f.Client().CoreV1().ServiceAccounts(f.name).CreateToken(f.ctx, account,
		&authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}, metav1.CreateOptions{})
	f.check(err)
	return "Authorization: Bearer " + made.Status.Token
}

func TestTokensAreAuthorizedAndNotForwarded(t *testing.T) {
	t.Parallel()
	const own = "the pool's own"
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte(own+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := newFixture(t, "authz", 2, options{pool: emulator.Options{Token: own}, auth: provider.Auth{TokenFile: file}})
	reader, writer, unprivileged := f.token("reader", "get"), f.token("writer", "get", "update"), f.token("unprivileged")
	f.startCloudpool("a", "--authorize")
	for _, tt := range []struct {
		name, header string
		get, post    int
	}{
		{"no token", "X-Nothing: here", http.StatusUnauthorized, http.StatusUnauthorized},
		{"a wrong token", "Authorization: Bearer abc", http.StatusUnauthorized, http.StatusUnauthorized},
		{"a writer with a token for the API server", f.tokenFor("writer"), http.StatusUnauthorized, http.StatusUnauthorized},
		{"a writer with a token for another service", f.tokenFor("writer", "vault"), http.StatusUnauthorized, http.StatusUnauthorized},
		{"an account without permissions", unprivileged, http.StatusForbidden, http.StatusForbidden},
		{"a reader", reader, http.StatusOK, http.StatusForbidden},
		{"a writer", writer, http.StatusOK, http.StatusOK},
	} {
		got, err := f.send(f.ctx, http.MethodGet, "/pool/size", "", tt.header)
		f.check(err)
		if got.code != tt.get {
			t.Errorf("%s reads: %s, want %d", tt.name, got, tt.get)
		}
		if got := f.post("/pool/size", size(2), tt.header); got.code != tt.post {
			t.Errorf("%s writes: %s, want %d", tt.name, got, tt.post)
		}
	}
	// Requests that the process makes on its own to shrink the pool must also carry the pool's token.
	f.startManager()
	if got := f.post("/pool/size", size(1), writer); got.code != http.StatusOK {
		t.Errorf("to 1: %s", got)
	}
	if n := len(f.pool.Machines()); n != 1 || f.pool.DesiredSize() != 1 {
		t.Errorf("%d machines, and a desired size of %d; want 1", n, f.pool.DesiredSize())
	}
	for _, r := range f.pool.Requests() {
		if got := r.Header.Values("Authorization"); !slices.Equal(got, []string{"Bearer " + own}) {
			t.Errorf("%s %s: the server received the credentials %q", r.Method, r.Path, got)
		}
	}
}
