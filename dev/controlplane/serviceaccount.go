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

// TokenOptions configures a token of ServiceAccountKubeconfig. The zero value means an unbound token for one hour.
type TokenOptions struct {
	// Pod binds the token to this pod in the ServiceAccount's namespace. The token ends with the pod and names its node,
	// like a token that a kubelet mounts. Set at most one of Pod and Node.
	Pod string
	// Node binds the token to this node.
	Node string
	// Duration is the token's lifetime. Zero means one hour. The API server's minimum is ten minutes.
	Duration time.Duration
	// Audiences are the token's audiences. Empty means the API server.
	Audiences []string
}

// ServiceAccountKubeconfig requests a token of an existing ServiceAccount, writes a kubeconfig with it, and returns its
// path. The file is removed with the control plane's directory.
func (c *Cluster) ServiceAccountKubeconfig(ctx context.Context, namespace, name string, o TokenOptions) (path string,
	err error,
) {
	bound, err := c.boundObjectReference(ctx, namespace, o)
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
	// Each call writes a new file, because a process may still read an earlier one.
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

// boundObjectReference returns a reference, with UID, to the object that the token is bound to.
func (c *Cluster) boundObjectReference(ctx context.Context, namespace string, o TokenOptions) (
	*authenticationv1.BoundObjectReference, error,
) {
	switch {
	case o.Pod != "" && o.Node != "":
		return nil, fmt.Errorf("a token can be bound to a pod (%s) or to a node (%s), not to both", o.Pod, o.Node)
	case o.Pod != "":
		pod, err := c.client.CoreV1().Pods(namespace).Get(ctx, o.Pod, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return newBoundReference("Pod", pod), nil
	case o.Node != "":
		node, err := c.client.CoreV1().Nodes().Get(ctx, o.Node, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		return newBoundReference("Node", node), nil
	}
	return nil, nil
}

func newBoundReference(kind string, object metav1.Object) *authenticationv1.BoundObjectReference {
	return &authenticationv1.BoundObjectReference{
		APIVersion: corev1.SchemeGroupVersion.String(), Kind: kind, Name: object.GetName(), UID: object.GetUID(),
	}
}
