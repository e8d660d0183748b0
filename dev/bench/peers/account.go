package peers

import (
	"context"
	"fmt"
	"net"
	"net/url"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/dev/controlplane"
)

// peerAccount is the ServiceAccount of the peer, and its namespace. Its requests are counted.
const peerAccount = "peer"

// createPeerAccount creates the ServiceAccount of the peer, with the rights of an administrator.
func (b *peersBench) createPeerAccount(ctx context.Context) error {
	if b.o.Peer == "" {
		return nil
	}
	meta := metav1.ObjectMeta{Name: peerAccount}
	if _, err := b.Client().CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		return err
	}
	if _, err := b.Client().CoreV1().ServiceAccounts(peerAccount).Create(ctx, &corev1.ServiceAccount{ObjectMeta: meta}, metav1.CreateOptions{}); err != nil {
		return err
	}
	_, err := b.Client().RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: peerAccount, Name: peerAccount}},
	}, metav1.CreateOptions{})
	return err
}

// enterCluster is a shell script. It shows the token and the certificate in its first two arguments at the place where a pod
// reads its credentials. Then it becomes the program in the other arguments.
const enterCluster = `set -e
mount -t tmpfs tmpfs /var/run
cd /var/run && mkdir -p secrets/kubernetes.io/serviceaccount && cd secrets/kubernetes.io/serviceaccount
printf %s "$1" >token
printf %s "$2" >ca.crt
shift 2
exec "$@"`

// runInCluster returns a command that runs the given one as in a pod, with the credentials of a kubeconfig, because some
// handlers read no kubeconfig. It uses a mount namespace of its own, and changes no file of the machine.
func runInCluster(command controlplane.Command, kubeconfig string) (controlplane.Command, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return command, err
	}
	server, err := url.Parse(config.Host)
	if err != nil {
		return command, err
	}
	host, port, err := net.SplitHostPort(server.Host)
	if err != nil {
		return command, fmt.Errorf("address of the API server: %w", err)
	}
	command.Env = append(command.Env, "KUBERNETES_SERVICE_HOST="+host, "KUBERNETES_SERVICE_PORT="+port)
	command.Args = append([]string{
		"--user", "--map-root-user", "--mount", "sh", "-c", enterCluster, "sh", config.BearerToken, string(config.CAData), command.Path,
	}, command.Args...)
	command.Path = "unshare"
	return command, nil
}
