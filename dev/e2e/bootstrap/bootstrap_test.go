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

// asPart returns a client with the token of a part's account in the shipped manifests.
func asPart(t *testing.T, c *testbed.Testbed, part string) kubernetes.Interface {
	t.Helper()
	root, err := testbed.RepositoryRoot()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{"rbac.yaml", "bootstrap.yaml"} {
		if err := c.ApplyFile(t.Context(), filepath.Join(root, "deploy", part, file)); err != nil {
			t.Fatal(err)
		}
	}
	kubeconfig, err := c.ServiceAccountKubeconfig(t.Context(), testbed.ManagerNamespace, "slipway-"+part, controlplane.TokenOptions{})
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

// userOf asks the API server for the user of a token.
func userOf(ctx context.Context, c *testbed.Testbed, token string) (authenticationv1.UserInfo, error) {
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
		who, err := userOf(t.Context(), c, token)
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

func TestTokenIsDeletedWhenItsInstanceHasJoined(t *testing.T) {
	c := testbed.StartShared(t)
	client := asPart(t, c, "manager")
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
		t.Errorf("the API server reports the user %+v", who)
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
		t.Errorf("%d tokens remain: %+v", len(left), left)
	}
}

// TestCloudpoolIssuesAndWithdrawsTokens uses the account of slipway cloudpool, which launches instances with --native.
func TestCloudpoolIssuesAndWithdrawsTokens(t *testing.T) {
	c := testbed.StartShared(t)
	publish(t, c)
	m, err := bootstrap.New(asPart(t, c, "cloudpool"), bootstrap.Options{})
	if err != nil {
		t.Fatal(err)
	}
	const machine = "pool-1"
	err = testbed.PollUntil(testbed.TestContext(t), "the API server knows the rights of the cloudpool", func() bool {
		_, err = m.Issue(t.Context(), machine)
		return !apierrors.IsForbidden(err)
	})
	if err != nil {
		t.Fatal(err)
	}
	tokenOf(t, c, machine)
	if err := m.Withdraw(t.Context(), machine); err != nil {
		t.Fatal(err)
	}
	if left := slices.DeleteFunc(tokens(t, c), func(s corev1.Secret) bool { return s.Annotations[bootstrap.MachineAnnotation] != machine }); len(left) > 0 {
		t.Errorf("%d tokens of the machine remain", len(left))
	}
}

func tokenOf(t *testing.T, c *testbed.Testbed, machine string) *corev1.Secret {
	t.Helper()
	for _, s := range tokens(t, c) {
		if s.Annotations[bootstrap.MachineAnnotation] == machine {
			return &s
		}
	}
	t.Fatalf("%s has no token", machine)
	return nil
}

func TestOlderNodeIsNotTheTokensInstance(t *testing.T) {
	c := testbed.StartShared(t)
	m, err := bootstrap.New(c.Client(), bootstrap.Options{Server: "192.0.2.1:6443", TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	publish(t, c)
	for _, o := range []bootstrap.Options{{TTL: time.Second}, {TTL: 25 * time.Hour}, {Server: "nowhere"}} {
		if _, err := bootstrap.New(c.Client(), o); err == nil {
			t.Errorf("%+v is accepted", o)
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
			t.Fatal("the test has timed out")
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
