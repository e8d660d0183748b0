package main

import (
	"errors"
	"fmt"
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

// kubeFlags are kubectl's flags for reaching a cluster, the same for every command that talks to one.
type kubeFlags struct {
	flags *genericclioptions.ConfigFlags
	// command is what the API server is told as the user agent.
	command string
}

func newKubeFlags(command string) kubeFlags {
	return kubeFlags{genericclioptions.NewConfigFlags(true), command}
}

func (k kubeFlags) add(fs *pflag.FlagSet) { k.flags.AddFlags(fs) }

// unnamedServer is what client-go takes when nothing names a server.
const unnamedServer = "http://localhost:8080"

func (k kubeFlags) config() (*rest.Config, error) {
	cfg, err := k.flags.ToRESTConfig()
	if err != nil {
		return nil, err
	}
	raw, err := k.flags.ToRawKubeConfigLoader().RawConfig()
	if err != nil {
		return nil, err
	}
	if len(raw.Clusters) == 0 && cfg.Host == unnamedServer && *k.flags.APIServer == "" {
		if env := os.Getenv(clientcmd.RecommendedConfigPathEnvVar); env != "" {
			return nil, fmt.Errorf("no kubeconfig names a cluster: KUBECONFIG is %q, where there is no file, or none that has a cluster", env)
		}
		return nil, errors.New("no kubeconfig names a cluster: give --kubeconfig or set KUBECONFIG")
	}
	cfg.UserAgent = "slipway-" + k.command + "/" + start.Version()
	return cfg, nil
}

// nodeName reads a node's name as people give it to kubectl: NAME, node/NAME or nodes/NAME.
func nodeName(arg string) (string, error) {
	name := arg
	if kind, rest, found := strings.Cut(arg, "/"); found && (kind == "node" || kind == "nodes") {
		name = rest
	}
	if wrong := validation.IsDNS1123Subdomain(name); len(wrong) > 0 {
		return "", fmt.Errorf("node %q: want NAME or node/NAME: %s", arg, wrong[0])
	}
	return name, nil
}

// nodeNames reads several.
func nodeNames(args []string) ([]string, error) {
	names := make([]string, len(args))
	for i, arg := range args {
		name, err := nodeName(arg)
		if err != nil {
			return nil, err
		}
		names[i] = name
	}
	return names, nil
}

// api is the small client that the drain engine works with.
func (k kubeFlags) api() (*kubeapi.Client, error) {
	cfg, err := k.config()
	if err != nil {
		return nil, err
	}
	return smallClient(cfg)
}

// clientset is client-go's. It reads whole clusters, so that it is not slowed down on this side: priority and fairness
// on the other side is there for that.
func (k kubeFlags) clientset() (kubernetes.Interface, error) {
	cfg, err := k.config()
	if err != nil {
		return nil, err
	}
	cfg.QPS = -1
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	cfg.AcceptContentTypes = "application/vnd.kubernetes.protobuf,application/json"
	return kubernetes.NewForConfig(cfg)
}

// namespace is the one that names without a namespace are in: of the flag, or else of the context.
func (k kubeFlags) namespace() (string, error) {
	namespace, _, err := k.flags.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}
