// Package bootstrap_test checks the bootstrap tokens of instances against a real API server. It uses only the rights of
// the shipped manifest.
package bootstrap_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/slipway-dev/slipway/dev/controlplane"
	"github.com/slipway-dev/slipway/dev/testbed"
	"github.com/slipway-dev/slipway/internal/bootstrap"
)

func TestMain(m *testing.M) { os.Exit(testbed.RunTestsAndStopShared(m)) }

// asManager returns a client with the token of the account in the shipped manifests.
func asManager(t *testing.T, c *testbed.Testbed) kubernetes.Interface {
	t.Helper()
	root, err := testbed.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"rbac.yaml", "bootstrap.yaml"} {
		if err := c.ApplyFile(t.Context(), filepath.Join(root, "deploy", "manager", file)); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig, err := c.ServiceAccountKubeconfig(t.Context(), testbed.ManagerNamespace, testbed.ManagerAccount, controlplane.TokenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return kubernetes.NewForConfigOrDie(config)
}

// publish creates the ConfigMap that kubeadm creates.
func publish(t *testing.T, c *testbed.Testbed) {
	t.Helper()
	ca := c.RESTConfig().CAData
	info := clientcmdapi.NewConfig()
	info.Clusters[""] = &clientcmdapi.Cluster{Server: c.RESTConfig().Host, CertificateAuthorityData: ca}
	raw, err := clientcmd.Write(*info)
	if err != nil {
		t.Fatal(err)
	}
	maps := c.Client().CoreV1().ConfigMaps(metav1.NamespacePublic)
	_, err = maps.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "cluster-info"}, Data: map[string]string{"kubeconfig": string(raw)},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = maps.Delete(context.WithoutCancel(t.Context()), "cluster-info", metav1.DeleteOptions{}) })
}

// whoIs asks the API server for the user of a token.
func whoIs(ctx context.Context, c *testbed.Testbed, token string) (authenticationv1.UserInfo, error) {
	config := rest.AnonymousClientConfig(c.RESTConfig())
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return review.Status.UserInfo, nil
}

// await waits until the API server accepts or rejects a token. Its authenticator reads from a cache.
func await(t *testing.T, c *testbed.Testbed, token string, taken bool) authenticationv1.UserInfo {
	t.Helper()
	for {
		who, err := whoIs(t.Context(), c, token)
		switch {
		case err == nil && taken:
			return who
		case apierrors.IsUnauthorized(err) && !taken:
			return who
		case err != nil && !apierrors.IsUnauthorized(err):
			t.Fatal(err)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("the token being taken is not %t", taken)
		}
	}
}

func tokens(t *testing.T, c *testbed.Testbed) []corev1.Secret {
	t.Helper()
	list, err := c.Client().CoreV1().Secrets(metav1.NamespaceSystem).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(s corev1.Secret) bool { return s.Type != corev1.SecretTypeBootstrapToken })
}

func TestATokenIsForOneMachineAndGoesWhenThatHasJoined(t *testing.T) {
	c := testbed.StartShared(t)
	client := asManager(t, c)
	m, err := bootstrap.New(client, bootstrap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Issue(t.Context(), "worker-1"); err == nil || !strings.Contains(err.Error(), "cluster-info") {
		t.Errorf("without cluster-info: %v", err)
	}
	publish(t, c)
	foreign := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef", Namespace: metav1.NamespaceSystem}, Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"expiration": time.Now().Add(-time.Hour).Format(time.RFC3339),
		},
	}
	if _, err := c.Client().CoreV1().Secrets(metav1.NamespaceSystem).Create(t.Context(), foreign, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	issued := map[string]string{}
	for _, machine := range []string{"worker-1", "worker-2", "worker-3"} {
		join, err := m.Issue(t.Context(), machine)
		if err != nil {
			t.Fatal(err)
		}
		if join.Expires.Before(time.Now().Add(25*time.Minute)) || join.Expires.After(time.Now().Add(31*time.Minute)) ||
			!strings.HasSuffix(c.RESTConfig().Host, join.Server) || !strings.HasPrefix(join.CACertHash, "sha256:") || join.CACert == "" {
			t.Errorf("%+v", join)
		}
		issued[machine] = join.Token
	}
	who := await(t, c, issued["worker-1"], true)
	if !strings.HasPrefix(who.Username, "system:bootstrap:") || !slices.Contains(who.Groups, bootstrap.BootstrapGroup) {
		t.Errorf("the API server takes it for %+v", who)
	}

	if err := m.Withdraw(t.Context(), "worker-3"); err != nil {
		t.Fatal(err)
	}
	await(t, c, issued["worker-3"], false)

	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "worker-1"}}
	if _, err := c.Client().CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Another process sweeps, as after a crash. It reads everything it needs from the Secret.
	successor, err := bootstrap.New(client, bootstrap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := successor.DeleteUnneededTokens(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, c, issued["worker-1"], false)
	await(t, c, issued["worker-2"], true)

	// The sweep also deletes an expired token. It keeps tokens of other makers, however old they are (I3). The cleaner
	// of kube-controller-manager is off by default, so it does not remove them.
	late := tokenOf(t, c, "worker-2")
	late.Data["expiration"] = []byte(time.Now().Add(-time.Minute).Format(time.RFC3339))
	if _, err := c.Client().CoreV1().Secrets(metav1.NamespaceSystem).Update(t.Context(), late, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := successor.DeleteUnneededTokens(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := tokens(t, c); len(left) != 1 || left[0].Name != foreign.Name {
		t.Errorf("%d tokens are left: %+v", len(left), left)
	}
}

func tokenOf(t *testing.T, c *testbed.Testbed, machine string) *corev1.Secret {
	t.Helper()
	for _, s := range tokens(t, c) {
		if s.Annotations[bootstrap.MachineAnnotation] == machine {
			return &s
		}
	}
	t.Fatalf("no token is for %s", machine)
	return nil
}

func TestANodeThatWasThereBeforeIsNotTheMachines(t *testing.T) {
	c := testbed.StartShared(t)
	m, err := bootstrap.New(c.Client(), bootstrap.Options{Server: "192.0.2.1:6443", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	publish(t, c)
	for _, o := range []bootstrap.Options{{TTL: time.Second}, {TTL: 25 * time.Hour}, {Server: "nowhere"}} {
		if _, err := bootstrap.New(c.Client(), o); err == nil {
			t.Errorf("%+v passes", o)
		}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "again"}}
	made, err := c.Client().CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for time.Since(made.CreationTimestamp.Time) < 2*time.Second { // creation times are in whole seconds
		select {
		case <-time.After(100 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatal("the test's time is over")
		}
	}
	join, err := m.Issue(t.Context(), "again")
	if err != nil {
		t.Fatal(err)
	}
	if join.Server != "192.0.2.1:6443" {
		t.Errorf("the API server is %s", join.Server)
	}
	if err := m.DeleteUnneededTokens(t.Context()); err != nil {
		t.Fatal(err)
	}
	await(t, c, join.Token, true)
	if err := m.Withdraw(t.Context(), "again"); err != nil {
		t.Fatal(err)
	}
	await(t, c, join.Token, false)
}

// token returns a Secret in the manager's form.
func token(changed func(*corev1.Secret)) *corev1.Secret {
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

// refused reports whether the policy of the shipped manifest refused the request.
func refused(err error) bool {
	return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "ValidatingAdmissionPolicy 'slipway-manager-bootstrap'")
}

// awaitPolicy waits until the API server enforces the policy. This takes a moment after the write.
func awaitPolicy(t *testing.T, forbidden func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var err error
	if testbed.PollUntil(ctx, "the policy is in force", func() bool { err = forbidden(); return refused(err) }) != nil {
		t.Fatalf("the policy is not in force: the answer is %v", err)
	}
}

func TestTheManagersTokenCreatesBootstrapTokensAlone(t *testing.T) {
	c := testbed.StartShared(t)
	stolen := asManager(t, c).CoreV1().Secrets(metav1.NamespaceSystem)
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	create := func(changed func(*corev1.Secret)) error {
		_, err := stolen.Create(t.Context(), token(changed), dryRun)
		return err
	}
	asServiceAccount := func(s *corev1.Secret) {
		s.Type, s.StringData = corev1.SecretTypeServiceAccountToken, nil
		s.Annotations = map[string]string{corev1.ServiceAccountNameKey: "clusterrole-aggregation-controller"}
	}
	awaitPolicy(t, func() error { return create(asServiceAccount) })
	for _, ttl := range []time.Duration{time.Minute, time.Hour, 24 * time.Hour} {
		if err := create(expires(ttl)); err != nil {
			t.Errorf("a bootstrap token of its own for %s: %v", ttl, err)
		}
	}
	for name, changed := range map[string]func(*corev1.Secret){
		"a ServiceAccount's token, by its name only a bootstrap token": asServiceAccount,
		"a Secret of no type":            func(s *corev1.Secret) { s.Type = "" },
		"another name":                   func(s *corev1.Secret) { s.Name = "token-fedcba" },
		"no label to find it by":         func(s *corev1.Secret) { s.Labels = nil },
		"no group":                       func(s *corev1.Secret) { delete(s.StringData, "auth-extra-groups") },
		"another group":                  func(s *corev1.Secret) { s.StringData["auth-extra-groups"] = "system:bootstrappers:admins" },
		"another group beside":           func(s *corev1.Secret) { s.StringData["auth-extra-groups"] += ",system:bootstrappers:admins" },
		"a token that never expires":     func(s *corev1.Secret) { delete(s.StringData, "expiration") },
		"a token that expires next week": expires(7 * 24 * time.Hour),
		"a token that outlives us":       expires(100 * 365 * 24 * time.Hour),
	} {
		if err := create(changed); !refused(err) {
			t.Errorf("%s: %v, want the policy to refuse it", name, err)
		}
	}
	// The policy cannot evaluate this value, so it refuses.
	if err := create(func(s *corev1.Secret) { s.StringData["expiration"] = "in a while, or later still" }); err == nil {
		t.Error("an expiration that is no time was admitted")
	}
}

// TestI3TheManagersTokenDeletesBootstrapTokensOfItsOwnAlone checks that a stolen manager token deletes only the
// manager's tokens.
func TestI3TheManagersTokenDeletesBootstrapTokensOfItsOwnAlone(t *testing.T) {
	c := testbed.StartShared(t)
	stolen := asManager(t, c).CoreV1().Secrets(metav1.NamespaceSystem)
	admin := c.Client().CoreV1().Secrets(metav1.NamespaceSystem)
	made := map[string]*corev1.Secret{
		"another's Secret": token(func(s *corev1.Secret) { s.Name, s.Type = "credentials", corev1.SecretTypeOpaque }),
		"another's token": token(func(s *corev1.Secret) {
			s.Name, s.StringData["token-id"], s.Labels = "bootstrap-token-aaaaaa", "aaaaaa", nil
		}),
		"its own token": token(func(*corev1.Secret) {}),
	}
	for name, s := range made {
		if _, err := admin.Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		t.Cleanup(func() { _ = admin.Delete(context.WithoutCancel(t.Context()), s.Name, metav1.DeleteOptions{}) })
	}
	remove := func(name string) error {
		return stolen.Delete(t.Context(), made[name].Name, metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
	}
	awaitPolicy(t, func() error { return remove("another's Secret") })
	if err := remove("another's token"); !refused(err) {
		t.Errorf("another's token: %v, want the policy to refuse it", err)
	}
	if err := remove("its own token"); err != nil {
		t.Errorf("its own token: %v", err)
	}
}
