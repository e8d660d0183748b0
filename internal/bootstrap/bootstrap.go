// Package bootstrap issues the tokens that new instances use to join a kubeadm cluster. Each instance gets its own
// bootstrap token. A token expires soon and is deleted when the Node has joined. See
// https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/.
//
// The package needs the permissions of deploy/manager/bootstrap.yaml: create, list and delete Secrets in kube-system,
// read the ConfigMap kube-public/cluster-info, and read Nodes. The admission policy in that file allows only Secrets as
// newTokenSecret creates them. deploy/cloudpool/bootstrap.yaml has the same for slipway cloudpool --native, which issues tokens
// and withdraws them.
package bootstrap

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/clientcmd"
	api "k8s.io/cluster-bootstrap/token/api"
	"k8s.io/cluster-bootstrap/token/util"

	"github.com/slipway-dev/slipway/internal/cloud/openstack"
)

// These label and annotation identify the tokens of this package. It never changes other tokens (invariant I3).
const (
	// TokenLabel marks the token Secrets, so that they can be listed.
	TokenLabel = "slipway.dev/bootstrap-token"
	// MachineAnnotation has the name of the instance that the token is for, which is also the name of its Node.
	MachineAnnotation = "slipway.dev/machine"
)

// labelValue is the value of the label TokenLabel.
const labelValue = "node"

// BootstrapGroup is the user group of tokens that kubeadm permits to join the cluster.
const BootstrapGroup = "system:bootstrappers:kubeadm:default-node-token"

const (
	// defaultTTL is the default lifetime of a token. An instance takes a few minutes to boot and pull images.
	defaultTTL = 30 * time.Minute
	minTTL     = time.Minute
	maxTTL     = 24 * time.Hour
	// cleanupInterval is the pause between two deletions of unneeded tokens.
	cleanupInterval = 20 * time.Second
	// clusterInfoTTL is how long cluster-info is cached.
	clusterInfoTTL = 5 * time.Minute
	// pageSize is the number of token Secrets that one request reads.
	pageSize = 200
)

// Options configures the issue of tokens.
type Options struct {
	// TTL is the lifetime of a token, 1m to 24h. 0 is 30m.
	TTL time.Duration
	// Server is the host and port of the API server for new instances. It defaults to the one in cluster-info.
	Server string
	// Log may be nil.
	Log *slog.Logger
}

// TokenIssuer creates and deletes bootstrap tokens. It implements [openstack.Joiner] and is safe for concurrent use.
type TokenIssuer struct {
	kube    kubernetes.Interface
	options Options

	mu         sync.Mutex
	info       *clusterInfo
	infoReadAt time.Time
}

var _ openstack.Joiner = (*TokenIssuer)(nil)

// clusterInfo has the API server's URL, its CA certificate and the hash of the certificate's public key, from
// kube-public/cluster-info.
type clusterInfo struct{ server, caCert, caCertHash string }

// New validates the options. It makes no request.
func New(kube kubernetes.Interface, o Options) (*TokenIssuer, error) {
	if o.TTL == 0 {
		o.TTL = defaultTTL
	}
	if o.TTL < minTTL || o.TTL > maxTTL {
		return nil, fmt.Errorf("bootstrap token: lifetime %s: want %s to %s", o.TTL, minTTL, maxTTL)
	}
	if o.Server != "" {
		if _, _, err := net.SplitHostPort(o.Server); err != nil {
			return nil, fmt.Errorf("bootstrap token: API server %q: want host:port: %w", o.Server, err)
		}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &TokenIssuer{kube: kube, options: o}, nil
}

// Issue creates a token for an instance and returns it with the API server's address and certificate.
func (m *TokenIssuer) Issue(ctx context.Context, machine string) (openstack.Join, error) {
	info, err := m.cachedClusterInfo(ctx)
	if err != nil {
		return openstack.Join{}, err
	}
	token, err := util.GenerateBootstrapToken()
	if err != nil {
		return openstack.Join{}, fmt.Errorf("bootstrap token: %w", err)
	}
	expires := time.Now().Add(m.options.TTL).UTC().Truncate(time.Second)
	secret, err := newTokenSecret(token, machine, expires)
	if err != nil {
		return openstack.Join{}, err
	}
	if _, err := m.secrets().Create(ctx, secret, metav1.CreateOptions{}); err != nil {
		return openstack.Join{}, fmt.Errorf("bootstrap token for %s: %w", machine, err)
	}
	return openstack.Join{
		Token: token, Expires: expires, Server: cmp.Or(m.options.Server, info.server), CACert: info.caCert, CACertHash: info.caCertHash,
	}, nil
}

// newTokenSecret returns the Secret of a token. The API server authenticates clients with it, and
// kube-controller-manager signs cluster-info with it.
func newTokenSecret(token, machine string, expires time.Time) (*corev1.Secret, error) {
	parts := util.BootstrapTokenRegexp.FindStringSubmatch(token)
	if len(parts) != 3 {
		return nil, errors.New("bootstrap token: malformed")
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: api.BootstrapTokenSecretPrefix + parts[1], Namespace: metav1.NamespaceSystem,
			Labels: map[string]string{TokenLabel: labelValue}, Annotations: map[string]string{MachineAnnotation: machine},
		},
		Type: corev1.SecretTypeBootstrapToken,
		StringData: map[string]string{
			api.BootstrapTokenIDKey:               parts[1],
			api.BootstrapTokenSecretKey:           parts[2],
			api.BootstrapTokenExpirationKey:       expires.Format(time.RFC3339),
			api.BootstrapTokenUsageAuthentication: "true",
			api.BootstrapTokenUsageSigningKey:     "true", // kubeadm join uses it to verify cluster-info
			api.BootstrapTokenExtraGroupsKey:      BootstrapGroup,
			api.BootstrapTokenDescriptionKey:      "For instance " + machine + " to join the cluster.",
		},
	}, nil
}

// Withdraw deletes the tokens of an instance.
func (m *TokenIssuer) Withdraw(ctx context.Context, machine string) error {
	return m.deleteTokensWithReason(ctx, func(s *corev1.Secret) string {
		if s.Annotations[MachineAnnotation] == machine {
			return "its instance will not join"
		}
		return ""
	})
}

// DeleteUnneededTokens checks all tokens once. It deletes the tokens of instances that have joined the cluster, and
// expired tokens. Kubernetes deletes expired tokens only if the token cleaner of kube-controller-manager is enabled.
func (m *TokenIssuer) DeleteUnneededTokens(ctx context.Context) error {
	var errs []error
	err := m.deleteTokensWithReason(ctx, func(s *corev1.Secret) string {
		if isExpired(s, time.Now()) {
			return "it has expired"
		}
		joined, err := m.hasJoined(ctx, s)
		errs = append(errs, err)
		if joined {
			return "its instance has joined"
		}
		return ""
	})
	return errors.Join(append(errs, err)...)
}

// hasJoined reports whether the instance of a token has a Node. Such an instance has its own certificate and no longer
// needs the token. A Node that is older than the token does not count, because it belongs to an earlier instance of the
// same name.
func (m *TokenIssuer) hasJoined(ctx context.Context, s *corev1.Secret) (joined bool, err error) {
	node, err := m.kube.CoreV1().Nodes().Get(ctx, s.Annotations[MachineAnnotation], metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("the Node of %s: %w", s.Annotations[MachineAnnotation], err)
	}
	return !node.CreationTimestamp.Before(&s.CreationTimestamp), nil
}

func isExpired(s *corev1.Secret, now time.Time) bool {
	at, err := time.Parse(time.RFC3339, string(s.Data[api.BootstrapTokenExpirationKey]))
	return err == nil && now.After(at)
}

// deleteTokensWithReason deletes each token if why returns a reason for it. It logs the reason.
func (m *TokenIssuer) deleteTokensWithReason(ctx context.Context, reasonToDelete func(*corev1.Secret) string) error {
	options := metav1.ListOptions{LabelSelector: TokenLabel + "=" + labelValue, Limit: pageSize}
	var errs []error
	for {
		list, err := m.secrets().List(ctx, options)
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("bootstrap tokens: %w", err))...)
		}
		for i := range list.Items {
			s := &list.Items[i]
			reason := reasonToDelete(s)
			if reason == "" || s.Type != corev1.SecretTypeBootstrapToken || s.Annotations[MachineAnnotation] == "" {
				continue
			}
			err := m.secrets().Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				errs = append(errs, fmt.Errorf("bootstrap token %s: %w", s.Name, err))
				continue
			}
			m.options.Log.Info("deleted a bootstrap token", "instance", s.Annotations[MachineAnnotation], "reason", reason)
		}
		if options.Continue = list.Continue; options.Continue == "" {
			return errors.Join(errs...)
		}
	}
}

// RunTokenCleanup deletes unneeded tokens periodically until ctx ends.
func (m *TokenIssuer) RunTokenCleanup(ctx context.Context) {
	ticker := time.NewTicker(cleanupInterval)
	defer ticker.Stop()
	for {
		if err := m.DeleteUnneededTokens(ctx); err != nil && ctx.Err() == nil {
			m.options.Log.Error("deleting unneeded bootstrap tokens failed", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (m *TokenIssuer) secrets() typedcorev1.SecretInterface {
	return m.kube.CoreV1().Secrets(metav1.NamespaceSystem)
}

// cachedClusterInfo returns the cluster information that kubeadm publishes for joining nodes. It reads the ConfigMap
// again after clusterInfoTTL.
func (m *TokenIssuer) cachedClusterInfo(ctx context.Context) (*clusterInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.info != nil && time.Since(m.infoReadAt) < clusterInfoTTL {
		return m.info, nil
	}
	published, err := m.kube.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(ctx, api.ConfigMapClusterInfo, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("reading the ConfigMap kube-public/cluster-info of kubeadm: %w", err)
	}
	info, err := parseClusterInfo([]byte(published.Data[api.KubeConfigKey]))
	if err != nil {
		return nil, fmt.Errorf("ConfigMap kube-public/cluster-info: %w", err)
	}
	m.info, m.infoReadAt = info, time.Now()
	return info, nil
}

// parseClusterInfo parses a kubeconfig that contains exactly one cluster.
func parseClusterInfo(raw []byte) (*clusterInfo, error) {
	config, err := clientcmd.Load(raw)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", api.KubeConfigKey, err)
	}
	if len(config.Clusters) != 1 {
		return nil, fmt.Errorf("%s: has %d clusters: want one", api.KubeConfigKey, len(config.Clusters))
	}
	for _, cluster := range config.Clusters {
		u, err := url.Parse(cluster.Server)
		if err != nil || u.Hostname() == "" {
			return nil, fmt.Errorf("%s: server %q: want an https URL", api.KubeConfigKey, cluster.Server)
		}
		hash, err := publicKeyHash(cluster.CertificateAuthorityData)
		if err != nil {
			return nil, fmt.Errorf("%s: certificate-authority-data: %w", api.KubeConfigKey, err)
		}
		return &clusterInfo{
			server: net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "443")), caCert: string(cluster.CertificateAuthorityData), caCertHash: hash,
		}, nil
	}
	return nil, errors.New("it has no cluster")
}

// publicKeyHash returns the value for kubeadm join --discovery-token-ca-cert-hash: the SHA-256 of the certificate's public
// key.
func publicKeyHash(raw []byte) (string, error) {
	block, _ := pem.Decode(raw)
	if block == nil {
		return "", errors.New("want a certificate in PEM")
	}
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(certificate.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}
