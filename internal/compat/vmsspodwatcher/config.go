// Package vmsspodwatcher is the compatibility mode of the VMSS pod watcher. That tool for AKS removes nodes that no
// longer run pods with a given label. This package converts the tool's environment to an Azure configuration and a
// NodeGroup that removes idle nodes.
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

// Tool is the name of the replaced tool.
const Tool = "vmss-pod-watcher"

// The names of the tool's environment variables. The tool itself misspells the variable of its periodic check.
const (
	envCooldown      = "COOLDOWN"
	envLabelKey      = "LABEL_KEY"
	envLabelValue    = "LABEL_VALUE"
	envNamespace     = "NAMESPACE"
	envGroup         = "VMSS_RG"
	envNodePool      = "FOCUS_NODEPOOL"
	envCheck         = "SCHEDULED_CHECK_FALG"
	envCheckFixed    = "SCHEDULED_CHECK_FLAG"
	envSync          = "FAKENP_FLAG"
	envCluster       = "AKS_NAME"
	envClusterRG     = "AKS_RG"
	envSyncPool      = "FAKE_NODEPOOL"
	envSubscription  = "AZURE_SUBSCRIPTION_ID" // the Azure SDK's
	defaultCooldown  = 10 * time.Minute
	maxCooldown      = 7 * 24 * time.Hour
	minCheckInterval = time.Second
)

// VariableNames returns the names of the environment variables that this package reads.
func VariableNames() []string {
	return []string{
		envCooldown, envLabelKey, envLabelValue, envNamespace, envGroup, envNodePool, envCheck, envCheckFixed, envSync, envCluster,
		envClusterRG, envSyncPool, envSubscription,
	}
}

// Config holds the tool's configuration as the user set it.
type Config struct {
	// Cooldown is the time a node must be without pods, and the interval of the check.
	Cooldown             time.Duration
	LabelKey, LabelValue string
	Namespace            string // empty means all
	ResourceGroup        string // of the scale set
	NodePool             string
	ScheduledCheck       bool
	// Sync restarts the cluster autoscaler after deletions, by a change of the maximum of SyncPool.
	Sync                            bool
	Cluster, ClusterGroup, SyncPool string
	Subscription                    string // empty means the nodes' subscription

	// Warnings report ignored and changed settings.
	Warnings []string
}

var (
	// Azure's naming rules for agent pools, resource groups, AKS clusters and subscription IDs.
	poolNamePattern      = regexp.MustCompile(`^[a-z][a-z0-9]{0,11}$`)
	resourceGroupPattern = regexp.MustCompile(`^[\pL\pN_.()-]{0,89}[\pL\pN_()-]$`)
	clusterNamePattern   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?$`)
	guidPattern          = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
)

// Parse parses an environment in the form of os.Environ. The error contains all faults.
func Parse(environ []string) (Config, error) {
	values := map[string]string{}
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok && slices.Contains(VariableNames(), name) {
			values[name] = strings.TrimSpace(value)
		}
	}
	c := Config{
		LabelKey: values[envLabelKey], LabelValue: values[envLabelValue], Namespace: values[envNamespace],
		ResourceGroup: values[envGroup], NodePool: values[envNodePool], Cluster: values[envCluster],
		ClusterGroup: values[envClusterRG], SyncPool: values[envSyncPool], Subscription: values[envSubscription],
	}
	var errs []error
	addError := func(err error) { errs = append(errs, err) }
	var err error
	c.Cooldown, err = c.parseCooldown(values[envCooldown])
	addError(err)
	c.ScheduledCheck, err = c.parseScheduledCheck(values)
	addError(err)
	c.Sync, err = parseBool(envSync, values[envSync])
	addError(err)
	addError(c.validate())
	if c.Namespace == "" {
		c.addWarning("$%s is empty: pods of all namespaces protect nodes", envNamespace)
	}
	return c, errors.Join(errs...)
}

func (c *Config) addWarning(format string, args ...any) {
	c.Warnings = append(c.Warnings, fmt.Sprintf(format, args...))
}

// parseCooldown parses a cooldown in Go's duration format, or in whole seconds.
func (c *Config) parseCooldown(text string) (time.Duration, error) {
	if text == "" {
		c.addWarning("$%s is empty, using %s", envCooldown, defaultCooldown)
		return defaultCooldown, nil
	}
	d, err := time.ParseDuration(text)
	if seconds, notNumber := strconv.ParseInt(text, 10, 32); notNumber == nil {
		d, err = time.Duration(seconds)*time.Second, nil
	}
	if err != nil || d < 0 || d > maxCooldown {
		return 0, fmt.Errorf("$%s: %q: want a duration such as 10m, or seconds, from 0 to %s", envCooldown, text, maxCooldown)
	}
	return d, nil
}

// parseScheduledCheck returns whether the tool's periodic check is enabled. It accepts both spellings of the variable.
func (c *Config) parseScheduledCheck(values map[string]string) (bool, error) {
	on, err := parseBool(envCheck, values[envCheck])
	other, otherErr := parseBool(envCheckFixed, values[envCheckFixed])
	if err := errors.Join(err, otherErr); err != nil {
		return false, err
	}
	if values[envCheck] == "" {
		return other, nil
	}
	if values[envCheckFixed] != "" && on != other {
		c.addWarning("$%s: %s is ignored, because $%s overrides it with %s", envCheckFixed, values[envCheckFixed], envCheck, values[envCheck])
	}
	return on, nil
}

func parseBool(name, text string) (bool, error) {
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
	want(len(validation.IsQualifiedName(c.LabelKey)) == 0, envLabelKey, c.LabelKey, "the label key of the pods that protect nodes")
	want(c.LabelValue != "" && len(validation.IsValidLabelValue(c.LabelValue)) == 0, envLabelValue, c.LabelValue,
		"the label value of the pods that protect nodes")
	want(c.Namespace == "" || len(validation.IsDNS1123Label(c.Namespace)) == 0, envNamespace, c.Namespace, "the name of a namespace")
	want(resourceGroupPattern.MatchString(c.ResourceGroup), envGroup, c.ResourceGroup, "the resource group of the scale set")
	want(poolNamePattern.MatchString(c.NodePool), envNodePool, c.NodePool, "the name of an agent pool")
	want(c.Subscription == "" || guidPattern.MatchString(c.Subscription), envSubscription, c.Subscription, "a subscription ID, a GUID")
	if c.Sync {
		const why = ", because $" + envSync + " is on"
		want(resourceGroupPattern.MatchString(c.ClusterGroup), envClusterRG, c.ClusterGroup, "the resource group of the AKS cluster"+why)
		want(clusterNamePattern.MatchString(c.Cluster), envCluster, c.Cluster, "the name of the AKS cluster"+why)
		want(poolNamePattern.MatchString(c.SyncPool), envSyncPool, c.SyncPool, "the name of an agent pool without nodes"+why)
		want(c.SyncPool != c.NodePool || c.SyncPool == "", envSyncPool, c.SyncPool, "another agent pool than $"+envNodePool)
	}
	return errors.Join(errs...)
}
