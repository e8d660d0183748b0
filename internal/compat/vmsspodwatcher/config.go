// Package vmsspodwatcher is the personality of the VMSS pod watcher, a client for AKS that removes nodes which no longer
// run pods with a label: its environment in, a NodeGroup with an idle rule and the configuration of Azure out.
package vmsspodwatcher

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Tool is the name of what is stood in for.
const Tool = "vmss-pod-watcher"

// The tool's variables. The first spelling of the check's flag is the tool's own.
const (
	envCooldown    = "COOLDOWN"
	envLabelKey    = "LABEL_KEY"
	envLabelValue  = "LABEL_VALUE"
	envNamespace   = "NAMESPACE"
	envGroup       = "VMSS_RG"
	envNodePool    = "FOCUS_NODEPOOL"
	envCheck       = "SCHEDULED_CHECK_FALG"
	envCheckToo    = "SCHEDULED_CHECK_FLAG"
	envSync        = "FAKENP_FLAG"
	envCluster     = "AKS_NAME"
	envClusterRG   = "AKS_RG"
	envSyncPool    = "FAKE_NODEPOOL"
	envSubscribed  = "AZURE_SUBSCRIPTION_ID" // the Azure SDK's
	defaultWait    = 10 * time.Minute
	longestWait    = 7 * 24 * time.Hour
	shortestChecks = time.Second
)

// Variables are the names of those that are read.
func Variables() []string {
	return []string{
		envCooldown, envLabelKey, envLabelValue, envNamespace, envGroup, envNodePool, envCheck, envCheckToo, envSync, envCluster,
		envClusterRG, envSyncPool, envSubscribed,
	}
}

// Config is the tool's configuration, as its users gave it.
type Config struct {
	// Cooldown is how long a node has to be without a pod, and the period of the check.
	Cooldown             time.Duration
	LabelKey, LabelValue string
	Namespace            string // empty is all
	ResourceGroup        string // of the scale set
	NodePool             string
	ScheduledCheck       bool
	// Sync has the cluster autoscaler look again, by the maximum of SyncPool.
	Sync                            bool
	Cluster, ClusterGroup, SyncPool string
	Subscription                    string // empty is that of the nodes

	// Warnings are what was passed over or is done otherwise than it was asked for.
	Warnings []string
}

var (
	// poolName is AKS's rule for agent pools, resourceGroup Azure's for resource groups, and clusterName AKS's for clusters. A
	// subscription is known by a guid.
	poolName      = regexp.MustCompile(`^[a-z][a-z0-9]{0,11}$`)
	resourceGroup = regexp.MustCompile(`^[\pL\pN_.()-]{0,89}[\pL\pN_()-]$`)
	clusterName   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$`)
	guid          = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
)

// Parse reads the environment, given as os.Environ gives it. The error names everything that is wrong.
func Parse(environ []string) (Config, error) {
	values := map[string]string{}
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok && slices.Contains(Variables(), name) {
			values[name] = strings.TrimSpace(value)
		}
	}
	c := Config{
		LabelKey: values[envLabelKey], LabelValue: values[envLabelValue], Namespace: values[envNamespace],
		ResourceGroup: values[envGroup], NodePool: values[envNodePool], Cluster: values[envCluster],
		ClusterGroup: values[envClusterRG], SyncPool: values[envSyncPool], Subscription: values[envSubscribed],
	}
	var errs []error
	note := func(err error) { errs = append(errs, err) }
	var err error
	c.Cooldown, err = c.cooldown(values[envCooldown])
	note(err)
	c.ScheduledCheck, err = c.check(values)
	note(err)
	c.Sync, err = truth(envSync, values[envSync])
	note(err)
	note(c.validate())
	if c.Namespace == "" {
		c.warn("$%s is empty: pods of all namespaces keep nodes", envNamespace)
	}
	return c, errors.Join(errs...)
}

func (c *Config) warn(format string, args ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...))
}

// cooldown reads a Go duration, or whole seconds.
func (c *Config) cooldown(text string) (time.Duration, error) {
	if text == "" {
		c.warn("$%s is empty: %s is taken", envCooldown, defaultWait)
		return defaultWait, nil
	}
	d, err := time.ParseDuration(text)
	if seconds, notNumber := strconv.ParseInt(text, 10, 32); notNumber == nil {
		d, err = time.Duration(seconds)*time.Second, nil
	}
	if err != nil || d < 0 || d > longestWait {
		return 0, fmt.Errorf("$%s: %q: want a duration such as 10m, or seconds, from 0 to %s", envCooldown, text, longestWait)
	}
	return d, nil
}

// check reads the flag of the periodic check under both spellings.
func (c *Config) check(values map[string]string) (bool, error) {
	on, err := truth(envCheck, values[envCheck])
	other, otherErr := truth(envCheckToo, values[envCheckToo])
	if err := errors.Join(err, otherErr); err != nil {
		return false, err
	}
	if values[envCheck] == "" {
		return other, nil
	}
	if values[envCheckToo] != "" && on != other {
		c.warn("$%s: %s is passed over, since $%s wins with %s", envCheckToo, values[envCheckToo], envCheck, values[envCheck])
	}
	return on, nil
}

func truth(name, text string) (bool, error) {
	switch strings.ToLower(text) {
	case "", "no", "off":
		return false, nil
	case "yes", "on":
		return true, nil
	}
	on, err := strconv.ParseBool(strings.ToLower(text))
	if err != nil {
		return false, fmt.Errorf("$%s: %q: want true or false", name, text)
	}
	return on, nil
}

func (c *Config) validate() error {
	var errs []error
	want := func(ok bool, name, value, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("$%s: %q: want %s", name, value, what))
		}
	}
	want(len(validation.IsQualifiedName(c.LabelKey)) == 0, envLabelKey, c.LabelKey, "the key of the label of the pods that keep nodes")
	want(c.LabelValue != "" && len(validation.IsValidLabelValue(c.LabelValue)) == 0, envLabelValue, c.LabelValue,
		"the value of the label of the pods that keep nodes")
	want(c.Namespace == "" || len(validation.IsDNS1123Label(c.Namespace)) == 0, envNamespace, c.Namespace, "the name of a namespace")
	want(resourceGroup.MatchString(c.ResourceGroup), envGroup, c.ResourceGroup, "the resource group of the scale set")
	want(poolName.MatchString(c.NodePool), envNodePool, c.NodePool, "the name of an agent pool")
	want(c.Subscription == "" || guid.MatchString(c.Subscription), envSubscribed, c.Subscription, "a subscription ID, a GUID")
	if c.Sync {
		const why = ", since $" + envSync + " is on"
		want(resourceGroup.MatchString(c.ClusterGroup), envClusterRG, c.ClusterGroup, "the resource group of the AKS cluster"+why)
		want(clusterName.MatchString(c.Cluster), envCluster, c.Cluster, "the name of the AKS cluster"+why)
		want(poolName.MatchString(c.SyncPool), envSyncPool, c.SyncPool, "the name of an agent pool without nodes"+why)
		want(c.SyncPool != c.NodePool || c.SyncPool == "", envSyncPool, c.SyncPool, "another agent pool than $"+envNodePool)
	}
	return errors.Join(errs...)
}
