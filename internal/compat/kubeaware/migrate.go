package kubeaware

import (
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

// passwordFile is the file for the password that the tool's URL contained. The pod has to mount a Secret there.
const passwordFile = "/etc/slipway/secrets/cloudpool-password" //nolint:gosec // a path

// Migrate converts the tool's file to a --cloud-config file. The result begins with comments that
// list the warnings and the steps that the user must take.
func Migrate(raw []byte) ([]byte, error) {
	c, err := Parse(raw)
	if err != nil {
		return nil, err
	}
	if c.Backend.Auth.Password != nil {
		c.Backend.Auth.Password, c.Backend.Auth.PasswordFile = nil, passwordFile
		c.addWarning("%s: must contain the password of backend.url; mount a Secret. It is not repeated here.", passwordFile)
	}
	body, err := yaml.Marshal(map[string]any{"cloudpool": c.ToPoolConfig(false)})
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString("# For --cloud-config of slipway manager and of slipway cloudpool, converted from a configuration of " + Tool + ".\n#\n")
	for _, line := range append(c.Warnings, c.migrationNotes()...) {
		b.WriteString("# - " + line + "\n")
	}
	b.Write(body)
	return []byte(b.String()), nil
}

func (c *Config) migrationNotes() []string {
	kube := "--kubeconfig " + c.APIServer.Auth.KubeConfigPath
	if c.APIServer.Auth.KubeConfigPath == "" {
		kube = "--kubeconfig FILE with clientCertPath, clientKeyPath and caCertPath (without it, the pod's ServiceAccount is used)"
	}
	return []string{
		"Set the kubeconfig's current-context to the cluster " + redactURL(c.APIServer.URL) + " (apiServer.url). The commands below use the " +
			"current-context. The tool ignored it and found the cluster by the URL.",
		"slipway manager --install-crds " + kube + " --cloud-config THIS",
		fmt.Sprintf("slipway cloudpool %s --cloud-config THIS --namespace slipway --listen :8080 --tls-cert-file … --tls-private-key-file … "+
			"--client-ca-file … --read-timeout %s --backend-timeout %s --policy LeastLoaded", kube, c.Server.Timeout, c.Backend.Timeout),
		"--listen beyond the loopback interface requires TLS and client authentication: --client-ca-file, or --authorize for tokens. --insecure allows it without, like the tool.",
		"Failures have distinct status codes: 404, 409, 429, 502, 503. --strict-compat answers 500, like the tool.",
		"Pods of kube-system with an emptyDir now protect their nodes. If the data may be lost, annotate them with cluster-autoscaler.kubernetes.io/safe-to-evict: \"true\".",
		"A node that is drained is cordoned, and has the taint node.kubernetes.io/unschedulable instead of node-about-to-be-drained. Change tools " +
			"and tolerations that name the old taint.",
		"The permissions of deploy/manager/rbac.yaml and deploy/cloudpool/rbac.yaml are required.",
		"A machine is paired with a node by spec.providerID, by address or by name. External IDs, which Kubernetes has not set since 1.11, are supported too.",
		"If the backend serves several pools, set multi: true and omit the name.",
		"slipway manager and slipway cloudpool do not continue the updates of slipway " + Tool + ". Stop it when no PoolUpdate and no NodeRetirement with the label " +
			BackendLabel + " is in progress.",
	}
}
