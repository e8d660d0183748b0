package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/slipway-dev/slipway/internal/notice/external"
)

// The values of --cloud.
const (
	// CloudAuto selects the cloud by the node's spec.providerID.
	CloudAuto  = "auto"
	CloudAzure = "azure"
	CloudAWS   = "aws"
	CloudGCP   = "gcp"
	// CloudNone reads no notices of a cloud.
	CloudNone = "none"
)

// Clouds returns all values of --cloud.
func Clouds() []string { return []string{CloudAuto, CloudAzure, CloudAWS, CloudGCP, CloudNone} }

// ASGOptions are the options of the lifecycle hook that an AWS Auto Scaling group runs before it terminates an
// instance.
type ASGOptions struct {
	// Name and Hook are the names of the group and of its hook. Each may be empty; then the agent looks it up.
	Name, Hook string
	// HookTimeout is how long the drain may take; 0 is the timeout of the hook.
	HookTimeout time.Duration
	// Endpoint is the URL of the Auto Scaling API; empty is the public one of the region.
	Endpoint string
}

// The defaults of how long before a planned interruption the agent acts on its notice.
const (
	DefaultRetirementLead  = 24 * time.Hour
	DefaultMaintenanceLead = 15 * time.Minute
)

// maxLead is the longest lead. Clouds announce planned interruptions about two weeks ahead.
const maxLead = 30 * 24 * time.Hour

// maxHookTimeout is the longest time that AWS keeps an instance for a lifecycle hook.
const maxHookTimeout = 48 * time.Hour

// registerCloudFlags adds the flags that select the cloud and its endpoint.
func (a *Agent) registerCloudFlags(fs *pflag.FlagSet) {
	fs.StringVar(&a.Cloud, "cloud", CloudAuto, "cloud with the notices: "+formatClouds()+"; auto uses the node's spec.providerID, or azure with --resource-name")
	fs.StringVar(&a.Endpoint, "endpoint", "", "URL of the cloud's metadata service; empty means the cloud's own")
	fs.DurationVar(&a.RetirementLead, "retirement-lead", DefaultRetirementLead, "how long before a planned stop or retirement of the VM to act; if first read later, at half of the time left")
	fs.DurationVar(&a.MaintenanceLead, "maintenance-lead", DefaultMaintenanceLead, "how long before a planned reboot or maintenance of the VM to act")
	fs.StringToStringVar(&a.NoticeSources, "notice-source", nil, "another source of notices: NAME=exec:PATH of a program, or NAME=URL; can be repeated")
	fs.StringVar(&a.ASG.Name, "asg-name", "", "AWS Auto Scaling group of this VM; empty means to look it up")
	fs.StringVar(&a.ASG.Hook, "asg-hook", "", "lifecycle hook to complete when the node is drained; empty means to look it up")
	fs.DurationVar(&a.ASG.HookTimeout, "asg-hook-timeout", 0, "how long a drain for the Auto Scaling group may take; 0 means the timeout of the hook, or 1h if it is unknown")
	fs.StringVar(&a.ASG.Endpoint, "asg-endpoint", "", "URL of the AWS Auto Scaling API; empty means the public one of the region")
}

func formatClouds() string {
	all := Clouds()
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}

// validateCloud validates the options that select the cloud and its endpoint.
func (a *Agent) validateCloud() error {
	var errs []error
	bad := a.newErrorCollector(&errs)
	if !slices.Contains(Clouds(), a.Cloud) {
		bad("cloud", a.Cloud, formatClouds())
	}
	for _, name := range slices.Sorted(maps.Keys(a.NoticeSources)) {
		if err := external.ValidateLocation(name, a.NoticeSources[name]); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", a.describeOptionSource("notice-source"), err))
		}
	}
	for _, l := range []struct {
		flag  string
		value time.Duration
	}{{"retirement-lead", a.RetirementLead}, {"maintenance-lead", a.MaintenanceLead}} {
		if l.value < 0 || l.value > maxLead {
			bad(l.flag, l.value, "0 to 720h")
		}
	}
	if a.ASG.HookTimeout != 0 && (a.ASG.HookTimeout < 30*time.Second || a.ASG.HookTimeout > maxHookTimeout) {
		bad("asg-hook-timeout", a.ASG.HookTimeout, "0, or 30s to 48h")
	}
	if a.ASG.Endpoint != "" && !isURL(a.ASG.Endpoint) {
		bad("asg-endpoint", a.ASG.Endpoint, "a URL such as https://autoscaling.eu-west-1.amazonaws.com, or nothing")
	}
	return errors.Join(errs...)
}
