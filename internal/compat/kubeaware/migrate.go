package kubeaware

import (
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// passwordFile is where a migrated configuration reads a password from that was in a URL; a Secret is mounted there.
const passwordFile = "/etc/slipway/secrets/cloudpool-password" //nolint:gosec // a path

// Migrate makes the file of --cloud-config that does what the tool's file does, with notes as comments above.
func Migrate(raw []byte) ([]byte, error) {
	c, err := Parse(raw)
	if err != nil {
		return nil, err
	}
	if c.Backend.Auth.Password != nil {
		c.Backend.Auth.Password, c.Backend.Auth.PasswordFile = nil, passwordFile
		c.warn("%s: put the password of backend.url there, from a Secret; it is not repeated here.", passwordFile)
	}
	body, err := yaml.Marshal(map[string]any{"cloudpool": c.Pool(false)})
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString("# For --cloud-config of slipway manager and of slipway cloudpool, made from a configuration of " + Tool + ".\n#\n")
	for _, line := range append(c.Warnings, c.notes()...) {
		b.WriteString("# - " + line + "\n")
	}
	b.Write(body)
	return []byte(b.String()), nil
}

func (c *Config) notes() []string {
	kube := "--kubeconfig " + c.APIServer.Auth.KubeConfigPath
	if c.APIServer.Auth.KubeConfigPath == "" {
		kube = "--kubeconfig FILE with clientCertPath, clientKeyPath and caCertPath, or a pod's ServiceAccount without it"
	}
	return []string{
		"slipway manager --install-crds " + kube + " --cloud-config THIS",
		fmt.Sprintf("slipway cloudpool %s --cloud-config THIS --namespace slipway --listen :8080 --tls-cert-file … --tls-private-key-file … "+
			"--client-ca-file … --read-timeout %s --backend-timeout %s --policy LeastLoaded", kube, c.Server.Timeout, c.Backend.Timeout),
		"--listen beyond the loopback interface wants TLS and to know its clients: --client-ca-file, or --authorize for tokens; --insecure is as it was.",
		"Failures are told apart: 404, 409, 429, 502, 503. --strict-compat answers 500, as it was.",
		"Pods of kube-system with an emptyDir keep their nodes now: annotate them cluster-autoscaler.kubernetes.io/safe-to-evict: \"true\" where it may be lost.",
		"Rights needed are those of deploy/manager/rbac.yaml and deploy/cloudpool/rbac.yaml.",
		"A node is taken for a machine's by its spec.providerID, by address or by name. External IDs, which Kubernetes has not set since 1.11, count too.",
		"If the backend is a server of several pools, say multi: true and leave the name out.",
	}
}
