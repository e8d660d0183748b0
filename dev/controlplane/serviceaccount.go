package controlplane

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TokenOptions says what kind of token ServiceAccountKubeconfig asks for. The zero value is one that is bound to
// nothing and lives an hour.
type TokenOptions struct {
	// Pod binds the token to that pod of the ServiceAccount's namespace: it ends with the pod, and carries the pod's
	// node, as the token that a kubelet mounts does. At most one of Pod and Node may be set.
	Pod string
	// Node binds the token to that node.
	Node string
	// Duration is how long the token lives: zero is an hour, the API server's least is ten minutes.
	Duration time.Duration
	// Audiences is who the token is for; empty is the API server.
	Audiences []string
}

// ServiceAccountKubeconfig asks the API server for a token of a ServiceAccount, which must exist, and writes a
// kubeconfig with it. What the token may do is up to RBAC. The file goes away with the control plane's directory.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string, o TokenOptions) (path string,
	err error,
) {
	bound, err := c.boundObject(ctx, namespace, o)
	if err != nil {
		return "", fmt.Errorf("token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	if o.Duration == 0 {
		o.Duration = time.Hour
	}
	seconds := int64(o.Duration / time.Second)
	token, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{
			Audiences: o.Audiences, ExpirationSeconds: &seconds, BoundObjectRef: bound,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("token of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	ca, err := os.ReadFile(filepath.Join(c.dir, pkiDir, "ca.crt"))
	if err != nil {
		return "", fmt.Errorf("kubeconfig of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	// A new file each time: a process that still reads an earlier one must not be given another's token.
	f, err := os.CreateTemp(filepath.Join(c.dir, tokenDir), namespace+"-"+name+"-*.kubeconfig")
	if err != nil {
		return "", fmt.Errorf("kubeconfig of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	if err := f.Close(); err != nil {
		return "", fmt.Errorf("kubeconfig of ServiceAccount %s/%s: %w", namespace, name, err)
	}
	user := &clientcmdapi.AuthInfo{Token: token.Status.Token}
	return f.Name(), writeKubeconfig(f.Name(), c.state.Host, ca, namespace+"/"+name, namespace, user)
}

// boundObject finds the object that a token is to be bound to, with its UID.
func (c *Cluster) boundObject(ctx context.Context, namespace string, o TokenOptions) (
	*authenticationv1.BoundObjectReference, error,
) {
	switch {
	case o.Pod != "" && o.Node != "":
		return nil, fmt.Errorf("it can be bound to a pod (%s) or to a node (%s), not to both", o.Pod, o.Node)
	case o.Pod != "":
		pod, err := c.client.CoreV1().Pods(namespace).Get(ctx, o.Pod, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return boundTo("Pod", pod), nil
	case o.Node != "":
		node, err := c.client.CoreV1().Nodes().Get(ctx, o.Node, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return boundTo("Node", node), nil
	}
	return nil, nil
}

func boundTo(kind string, object metav1.Object) *authenticationv1.BoundObjectReference {
	return &authenticationv1.BoundObjectReference{
		APIVersion: corev1.SchemeGroupVersion.String(), Kind: kind, Name: object.GetName(), UID: object.GetUID(),
	}
}
