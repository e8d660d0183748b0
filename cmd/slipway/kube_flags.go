package main

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/slipway-dev/slipway/cmd/internal/start"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// kubeFlags holds kubectl's connection flags. All commands that use a cluster have them.
type kubeFlags struct {
	flags *genericclioptions.ConfigFlags
	// command is the command name in the user agent.
	command string
}

func newKubeFlags(command string) kubeFlags {
	return kubeFlags{genericclioptions.NewConfigFlags(true), command}
}

func (k kubeFlags) addFlags(fs *pflag.FlagSet) {
	k.flags.AddFlags(fs)
	fs.Lookup("request-timeout").Usage = "time limit of each request to the API server, such as 10s; " +
		"0 means the default of the command, which is no limit for most commands; an eviction takes at most 20s"
}

// clientGoDefaultServer is the server that client-go uses if no kubeconfig names one.
const clientGoDefaultServer = "http://localhost:8080"

// errNoKubeconfig means that neither a file nor a flag names an API server.
var errNoKubeconfig = errors.New("no kubeconfig with a cluster")

func (k kubeFlags) restConfig() (*rest.Config, error) {
	cfg, err := k.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	raw, err := k.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, err
	}
	if len(raw.Clusters) == 0 && cfg.Host == clientGoDefaultServer && *k.flags.APIServer == "" {
		if env := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); env != "" {
			return nil, fmt.Errorf("%w: KUBECONFIG is %q, but that file does not exist or has no cluster", errNoKubeconfig, env)
		}
		return nil, fmt.Errorf("%w: want --kubeconfig or KUBECONFIG", errNoKubeconfig)
	}
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return connectErrorTransport{next} })
	cfg.UserAgent = "slipway-" + k.command + "/" + start.Version()
	return cfg, nil
}

// parseNodeName returns the node name in an argument. Like kubectl it accepts NAME, node/NAME and nodes/NAME.
func parseNodeName(arg string) (string, error) {
	name := arg
	if kind, rest, found := strings.Cut(arg, "/"); found && (kind == "node" || kind == "nodes") {
		name = rest
	}
	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		return "", fmt.Errorf("node %q: want NAME or node/NAME: %s", arg, wrong[0])
	}
	return name, nil
}

func parseNodeNames(args []string) ([]string, error) {
	names := make([]string, len(args))
	for i, arg := range args {
		name, err := parseNodeName(arg)
		if err != nil {
			return nil, err
		}
		names[i] = name
	}
	return names, nil
}

// newAPIClient returns a kubeapi client, which the drain engine uses.
func (k kubeFlags) newAPIClient() (*kubeapi.Client, error) {
	cfg, err := k.restConfig()
	if err != nil {
		return nil, err
	}
	return newKubeAPIClient(cfg)
}

// newClientset returns a client-go client for reading whole clusters. It has no client-side rate limit, because the API
// server limits requests itself (priority and fairness).
func (k kubeFlags) newClientset() (kubernetes.Interface, error) {
	cfg, err := k.restConfig()
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return kubernetes.NewForConfig(cfg)
}

// contextNamespace returns the namespace of the flag --namespace. Without the flag it returns the namespace of the
// kubeconfig context.
func (k kubeFlags) contextNamespace() (string, error) {
	namespace, _, err := k.flags.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}
