package controlplane

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// certificateLifetime is longer than any development control plane runs.
const certificateLifetime = 365 * 24 * time.Hour

type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

// certificatePair is a certificate and its key in PEM.
type certificatePair struct{ certificate, key []byte }

func newAuthority() (*authority, error) {
	template := certificateTemplate(pkix.Name{CommonName: "slipway-dev"})
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("making the certificate authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("making the certificate authority: %w", err)
	}
	return &authority{certificate, key, encodePEM("CERTIFICATE", der)}, nil
}

func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	return key, nil
}

func certificateTemplate(subject pkix.Name) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: big.NewInt(now.UnixNano()),
		Subject:      subject,
		// Allows for a clock that is set back by up to a minute.
		NotBefore: now.Add(-time.Minute), NotAfter: now.Add(certificateLifetime),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}
}

// signServerCertificate signs the certificate of the API server and of etcd. Both also use it as clients of etcd.
func (a *authority) signServerCertificate() (certificatePair, error) {
	template := certificateTemplate(pkix.Name{CommonName: "slipway-dev-server"})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)}
	template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"}
	return a.signNewKeyPair(template)
}

// signClientCertificate signs a certificate that the API server accepts as this user and groups.
func (a *authority) signClientCertificate(user string, groups ...string) (certificatePair, error) {
	template := certificateTemplate(pkix.Name{CommonName: user, Organization: groups})
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.signNewKeyPair(template)
}

func (a *authority) signNewKeyPair(template *x509.Certificate) (certificatePair, error) {
	key, err := newKey()
	if err != nil {
		return certificatePair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return certificatePair{}, fmt.Errorf("making the certificate of %s: %w", template.Subject.CommonName, err)
	}
	encoded, err := encodeKey(key)
	if err != nil {
		return certificatePair{}, err
	}
	return certificatePair{encodePEM("CERTIFICATE", der), encoded}, nil
}

func encodePEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	return encodePEM("EC PRIVATE KEY", der), nil
}

func encodePublicKey(key crypto.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		return nil, fmt.Errorf("encoding a public key: %w", err)
	}
	return encodePEM("PUBLIC KEY", der), nil
}

func (l layout) writeCertificates() error {
	a, err := newAuthority()
	if err != nil {
		return err
	}
	server, err := a.signServerCertificate()
	if err != nil {
		return err
	}
	accounts, err := newKey()
	if err != nil {
		return err
	}
	accountsKey, err := encodeKey(accounts)
	if err != nil {
		return err
	}
	accountsPublic, err := encodePublicKey(accounts.Public())
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"ca.crt":              a.pem,
		"server.crt":          server.certificate,
		"server.key":          server.key,
		"service-account.key": accountsKey,
		"service-account.pub": accountsPublic,
	} {
		if err := os.WriteFile(l.path(pkiDir, name), content, 0o600); err != nil {
			return fmt.Errorf("writing certificates: %w", err)
		}
	}
	return l.writeKubeconfigs(a)
}

// writeKubeconfigs writes the kubeconfig of each client that has a certificate. The API server's built-in RBAC roles are
// bound to the users of the controller manager and the scheduler.
func (l layout) writeKubeconfigs(a *authority) error {
	for file, identity := range map[string]struct {
		user   string
		groups []string
	}{
		adminKubeconfig:                   {"slipway-dev:admin", []string{"system:masters"}},
		ControllerManager + ".kubeconfig": {"system:kube-controller-manager", nil},
		Scheduler + ".kubeconfig":         {"system:kube-scheduler", nil},
		Kwok + ".kubeconfig":              {"slipway-dev:kwok", []string{"system:masters"}},
	} {
		p, err := a.signClientCertificate(identity.user, identity.groups...)
		if err != nil {
			return err
		}
		user := &clientcmdapi.AuthInfo{ClientCertificateData: p.certificate, ClientKeyData: p.key}
		if err := writeKubeconfig(l.path(file), l.apiServerURL(), a.pem, identity.user, "", user); err != nil {
			return err
		}
	}
	return nil
}

// writeKubeconfig writes a kubeconfig with certificates and tokens inline.
func writeKubeconfig(path, server string, ca []byte, name, namespace string, user *clientcmdapi.AuthInfo) error {
	config := clientcmdapi.NewConfig()
	config.Clusters["slipway-dev"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	config.AuthInfos[name] = user
	config.Contexts["slipway-dev"] = &clientcmdapi.Context{Cluster: "slipway-dev", AuthInfo: name, Namespace: namespace}
	config.CurrentContext = "slipway-dev"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("writing the kubeconfig of %s: %w", name, err)
	}
	return nil
}
