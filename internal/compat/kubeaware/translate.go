package kubeaware

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/slipway-dev/slipway/internal/cloud"
	provider "github.com/slipway-dev/slipway/internal/cloud/cloudpool"
	"github.com/slipway-dev/slipway/internal/cloudpool"
	"github.com/slipway-dev/slipway/internal/cloudpool/controller"
	"github.com/slipway-dev/slipway/internal/cloudpool/httpserver"
	"github.com/slipway-dev/slipway/internal/placement/planner"
)

// BackendHash returns a hash of the backend's URL. It is the same in all replicas of a proxy, and differs between
// proxies for different backends.
func (c *Config) BackendHash() string {
	sum := fnv.New32a()
	sum.Write([]byte(strings.ToLower(strings.TrimRight(c.Backend.URL, "/"))))
	return fmt.Sprintf("%08x", sum.Sum32())
}

// BackendLabel is the label of the NodeRetirements that a proxy creates and carries out itself. Its value is the
// BackendHash.
const BackendLabel = "slipway.dev/" + Tool

// poolURLPattern matches the URL of one pool on a server with several pools.
var poolURLPattern = regexp.MustCompile(`/cloudpools/([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)/?$`)

// ToPoolConfig returns the configuration of the cloudpool provider for the backend. multi means that the server has
// several pools. A pool with a name that Slipway cannot serve gets a name from the BackendHash.
func (c *Config) ToPoolConfig(multi bool) provider.Config {
	pool := provider.PoolConfig{URL: c.Backend.URL, Multi: multi, ComputerName: c.Backend.ComputerName}
	if !multi {
		pool.Name = "cloudpool-" + c.BackendHash()
		if named := poolURLPattern.FindStringSubmatch(c.Backend.URL); named != nil {
			if usable, _ := cloudpool.SelectPoolNames(named[1:2]); len(usable) > 0 {
				pool.Name = usable[0]
			}
		}
	}
	a := c.Backend.Auth
	return provider.Config{
		Pools: []provider.PoolConfig{pool}, RequestTimeout: cloud.Duration(c.Backend.Timeout), CAFile: c.Backend.CAFile,
		FollowRedirects: true,
		Auth: provider.Auth{
			Username: a.Username, PasswordFile: a.PasswordFile, Password: a.Password, TokenFile: a.TokenFile, CertFile: a.CertFile, KeyFile: a.KeyFile,
		},
	}
}

// ToCloudpoolConfig returns the configuration of `slipway cloudpool`.
func (c *Config) ToCloudpoolConfig(f *Flags) cloudpool.Config {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = Tool
	}
	level := "info"
	if f.Verbosity >= 4 {
		level = "debug"
	}
	return cloudpool.Config{
		ListenOptions: httpserver.ListenOptions{
			Address: f.ListenAddress(), TLSCertFile: f.TLSCertFile, TLSKeyFile: f.TLSKeyFile, ClientCAFile: f.ClientCAFile, Authorize: f.Authorize,
			ReadTimeout: c.Server.Timeout,
		},
		ServerOptions: httpserver.ServerOptions{
			BackendTimeout: c.Backend.Timeout, MaxBody: 16 << 20, StrictCompat: f.StrictCompat,
			ForwardCredentials: !f.Authorize && c.Backend.Auth == BackendAuth{},
		},
		UpdaterOptions: controller.UpdaterOptions{
			Namespace: f.Namespace, Holder: host, Policy: planner.LeastLoaded, MaxConcurrentRemovals: 1, RemoveLastWorker: f.RemoveLastWorker,
			SystemLocalStorage: true, Labels: map[string]string{BackendLabel: c.BackendHash()},
			Timeouts: controller.Timeouts{
				NodeRegistration: 15 * time.Minute, PollInterval: 2 * time.Second, FailureTolerance: time.Minute, RetirementStart: 5 * time.Minute, PodSettle: time.Minute,
			},
		},
		Insecure: true, TokenAudiences: []string{cloudpool.DefaultTokenAudience}, MetricsListen: f.MetricsListen, LogLevel: level, LogFormat: "text",
	}
}

// ToRESTConfig returns the client-go configuration for the API server.
func (a *APIServer) ToRESTConfig(userAgent string) (*rest.Config, error) {
	config := &rest.Config{Host: a.URL, TLSClientConfig: rest.TLSClientConfig{
		CertFile: a.Auth.ClientCertPath, KeyFile: a.Auth.ClientKeyPath, CAFile: a.Auth.CACertPath,
	}}
	if a.Auth.KubeConfigPath != "" {
		var err error
		if config, err = a.loadKubeconfig(); err != nil {
			return nil, fmt.Errorf("failed to create kubernetes client: %w", err)
		}
	} else {
		for _, path := range []string{a.Auth.ClientCertPath, a.Auth.ClientKeyPath, a.Auth.CACertPath} {
			if _, err := os.ReadFile(path); err != nil {
				return nil, fmt.Errorf("failed to create kubernetes client: could not create kubernetes client: %w", err)
			}
		}
	}
	config.UserAgent, config.QPS = userAgent, -1
	return config, nil
}

// loadKubeconfig returns the client-go configuration from a kubeconfig file, for the cluster with the API server's URL.
// It uses the current context if this context belongs to the cluster. Otherwise it uses the cluster's first context by
// name. All kinds of credentials are supported.
func (a *APIServer) loadKubeconfig() (*rest.Config, error) {
	path := a.Auth.KubeConfigPath
	if abs, err := filepath.Abs(path); err == nil {
		path = abs
	}
	file, err := clientcmd.LoadFromFile(path)
	if err != nil {
		return nil, fmt.Errorf("failed to load kubeconfig %s: %w", a.Auth.KubeConfigPath, err)
	}
	if err := clientcmd.ResolveLocalPaths(file); err != nil {
		return nil, fmt.Errorf("failed to load kubeconfig %s: %w", a.Auth.KubeConfigPath, err)
	}
	context, err := a.findContextName(file)
	if err != nil {
		return nil, fmt.Errorf("failed to load auth credentials from kubeconfig %s: %w", a.Auth.KubeConfigPath, err)
	}
	return clientcmd.NewNonInteractiveClientConfig(*file, context, &clientcmd.ConfigOverrides{}, nil).ClientConfig()
}

func (a *APIServer) findContextName(file *clientcmdapi.Config) (string, error) {
	clusters := map[string]bool{}
	for name, cluster := range file.Clusters {
		if strings.TrimRight(cluster.Server, "/") == strings.TrimRight(a.URL, "/") {
			clusters[name] = true
		}
	}
	if len(clusters) == 0 {
		return "", errors.New("kubeconfig does not contain a cluster with api server URL " + redactURL(a.URL))
	}
	found := ""
	for name, context := range file.Contexts {
		if clusters[context.Cluster] && (found == "" || name == file.CurrentContext || found != file.CurrentContext && name < found) {
			found = name
		}
	}
	if found == "" {
		return "", errors.New("kubeconfig does not contain a context for a cluster with api server URL " + redactURL(a.URL))
	}
	if user := file.Contexts[found].AuthInfo; file.AuthInfos[user] == nil {
		return "", errors.New("kubeconfig does not contain a user named " + user)
	}
	return found, nil
}
