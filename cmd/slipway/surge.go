package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/spf13/pflag"
	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/slipway-dev/slipway/internal/drain"
	"github.com/slipway-dev/slipway/internal/kubeapi"
	"github.com/slipway-dev/slipway/internal/surge"
)

// surgeFlags holds the flags for starting the successors of pods before they leave.
type surgeFlags struct {
	mode      string
	namespace string
}

func (s *surgeFlags) addFlags(fs *pflag.FlagSet, usage string) {
	fs.StringVar(&s.mode, "surge", string(surge.Off), usage)
	fs.Lookup("surge").NoOptDefVal = string(surge.On)
	fs.StringVar(&s.namespace, "surge-namespace", "slipway", "namespace of Slipway, which holds the records of surges")
}

// enabled reports whether any pod may surge. validate has to be called before.
func (s *surgeFlags) enabled() bool {
	mode, _ := surge.ParseMode(s.mode)
	return mode.Enabled()
}

func (s *surgeFlags) validate() error {
	if _, err := surge.ParseMode(s.mode); err != nil {
		return fmt.Errorf("--surge: %w", err)
	}
	if s.enabled() && s.namespace == "" {
		return errors.New("--surge-namespace: is empty: want the namespace of Slipway")
	}
	return nil
}

// validateForCluster is validate for a command that can read a snapshot file.
func (s *surgeFlags) validateForCluster(c clusterFlags) error {
	if s.enabled() && c.file != "" {
		return errors.New("--surge and --snapshot: want only one of the two: a snapshot does not contain the owners of pods")
	}
	return s.validate()
}

// newSurger returns what decides about surges and carries them out.
func (s *surgeFlags) newSurger(api *kubeapi.Client, log io.Writer) (*surge.Surger, error) {
	mode, err := surge.ParseMode(s.mode)
	if err != nil {
		return nil, err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	return surge.New(surge.Options{
		API: api, Namespace: s.namespace, Mode: mode,
		Identity: surge.NewIdentity("command/" + host), // containers share names and process IDs
		Logger:   slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	})
}

// recordVerbs are the rights on Leases that the records of surges need.
var recordVerbs = []string{"get", "list", "create", "update", "delete"}

// checkRecords returns an error if the records of surges cannot be written. The error says what to do.
func (s *surgeFlags) checkRecords(ctx context.Context, core kubernetes.Interface) error {
	_, err := core.CoreV1().Namespaces().Get(ctx, s.namespace, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return fmt.Errorf("--surge-namespace: namespace %q does not exist: want the namespace of Slipway's agents and manager; "+
			"if there are none, run kubectl create namespace %s", s.namespace, s.namespace)
	case err != nil && !apierrors.IsForbidden(err): // the right to read namespaces is not needed
		return err
	}
	var missing []string
	for _, verb := range recordVerbs {
		review, err := core.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: s.namespace, Verb: verb, Group: "coordination.k8s.io", Resource: "leases",
			}},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("--surge: checking the rights to Leases in namespace %s: %w", s.namespace, err)
		}
		if !review.Status.Allowed {
			missing = append(missing, verb)
		}
	}
	if len(missing) > 0 {
		return &hintError{
			fmt.Errorf("--surge: no right to %s Leases in namespace %s, which hold the records of surges", strings.Join(missing, ", "), s.namespace),
			fmt.Sprintf("ask for a Role in namespace %s with these verbs for leases of coordination.k8s.io, or drain without --surge", s.namespace),
		}
	}
	return nil
}

// startRestoring takes over expired records of other processes in the background, until stop is called. stop returns when
// no restoration runs any more.
func startRestoring(ctx context.Context, s *surge.Surger) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { s.RestoreExpired(ctx) })
	return func() {
		cancel()
		group.Wait()
	}
}

// podSurge is the decision about the successor of one pod.
type podSurge struct {
	Node      string             `json:"node"`
	Namespace string             `json:"namespace"`
	Pod       string             `json:"pod"`
	Surge     *drain.SurgeReport `json:"surge"`
}

// predictSurges returns the decisions about the pods of the nodes that would need a successor first, with the room of each successor.
// A problem that is not about one pod is printed to stderr.
func (s *surgeFlags) predictSurges(
	ctx context.Context, api *kubeapi.Client, rooms *successorRooms, o drain.Options, stderr io.Writer,
) ([]podSurge, error) {
	surger, err := s.newSurger(api, stderr)
	if err != nil {
		return nil, err
	}
	o.Surger = surger
	all := []podSurge{}
	for _, node := range rooms.drained {
		o.Node = node
		f, err := drain.Predict(ctx, api, o, false)
		if err != nil {
			return nil, err
		}
		for _, problem := range f.Problems {
			fmt.Fprintf(stderr, "%s: %s\n", node, problem)
		}
		rooms.addTo(ctx, f, stderr)
		for _, p := range f.Pods {
			if p.Surge != nil {
				all = append(all, podSurge{node, p.Namespace, p.Name, p.Surge})
			}
		}
	}
	return all, nil
}

const (
	// surgeModeNote and roomNote say what the decisions of plan, why and top leave out. drainRoomNote is for a preview of a drain.
	surgeModeNote = " Agents and the manager have their own surge mode, and may have less time."
	roomNote      = "Room is only information here: agents and slipway drain leave the node to the scheduler. The manager refuses a successor without room."
	drainRoomNote = "Room is only information: the drain leaves the node to the scheduler."
)

// printSurges prints a table of decisions after an empty line, or nothing if there are none. stop is the time that they were made for.
func printSurges(w io.Writer, all []podSurge, stop stopTime) error {
	if len(all) == 0 {
		return nil
	}
	severalNodes := slices.ContainsFunc(all, func(s podSurge) bool { return s.Node != all[0].Node })
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	header, node := "\nPOD\tSUCCESSOR FIRST", ""
	if severalNodes {
		header = "\nNODE\tPOD\tSUCCESSOR FIRST"
	}
	fmt.Fprintln(t, header)
	for _, s := range all {
		if severalNodes {
			node = s.Node + "\t"
		}
		fmt.Fprintf(t, "%s%s/%s\t%s\n", node, s.Namespace, s.Pod, s.Surge)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, stop.describe()+surgeModeNote)
	if err == nil && slices.ContainsFunc(all, func(s podSurge) bool { return s.Surge.Room != nil }) {
		_, err = fmt.Fprintln(w, roomNote)
	}
	return err
}
