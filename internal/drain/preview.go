package drain

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	podrules "github.com/slipway-dev/slipway/internal/drainability/pod"
	"github.com/slipway-dev/slipway/internal/kubeapi"
)

// Forecast is what a drain would do if it began now. It is a value, and its order is by wave, namespace and name.
type Forecast struct {
	Node string        `json:"node"`
	At   time.Time     `json:"at"`
	Pods []PodForecast `json:"pods"`
	// Problems say what could not be found out, such as budgets that may not be listed.
	Problems []string `json:"problems,omitempty"`
}

// PodForecast is one pod's part.
type PodForecast struct {
	Namespace string          `json:"namespace"`
	Name      string          `json:"name"`
	UID       string          `json:"uid"`
	Owner     string          `json:"owner,omitempty"` // Kind/name of the controller
	Verdict   Verdict         `json:"verdict"`
	Action    podrules.Action `json:"action"`
	Wave      int             `json:"wave"`
	// How it would be asked: Evicted or DeletedOnRequest, and empty where it would not be.
	How Asked `json:"how,omitempty"`
	// GraceWanted is the pod's own or the caller's; GraceGiven what it would get. Seconds.
	GraceWanted int64 `json:"graceWantedSeconds"`
	GraceGiven  int64 `json:"graceGivenSeconds"`
	// Obstacle is what would hold it up now; its Reason is empty where nothing would.
	Obstacle Blocked `json:"obstacle,omitzero"`
}

// Refused returns the pods for whose sake the drain would not take place.
func (f Forecast) Refused() []PodForecast {
	return f.pods(func(p PodForecast) bool { return p.Action == podrules.Refuse })
}

// Obstructed returns the pods that something would hold up now.
func (f Forecast) Obstructed() []PodForecast {
	return f.pods(func(p PodForecast) bool { return p.Obstacle.Reason != "" })
}

func (f Forecast) pods(is func(PodForecast) bool) (found []PodForecast) {
	for _, p := range f.Pods {
		if is(p) {
			found = append(found, p)
		}
	}
	return found
}

// Preview says what a drain would do now, and changes nothing: it lists the node's pods once and reads the budgets of
// their namespaces. With server it also sends each eviction as a dry run, so that the API server itself says which it
// would deny; that needs the right to evict. The error is that of the list; what else fails is in the Forecast.
func Preview(ctx context.Context, api API, o Options, server bool) (Forecast, error) {
	d := New(api, o)
	pods, err := d.listPods(ctx)
	if err != nil {
		return Forecast{}, err
	}
	now := time.Now()
	d.since = now
	d.replace(pods, now)
	d.review(now)
	f := Forecast{Node: o.Node, At: now}
	f.Problems = d.learnBudgets(ctx)
	d.foresee(now)
	if server {
		d.rehearse(ctx, now)
	}
	for _, p := range d.inOrder() {
		f.Pods = append(f.Pods, d.forecast(p, now))
	}
	slices.SortStableFunc(f.Pods, func(a, b PodForecast) int {
		return cmp.Or(cmp.Compare(a.Wave, b.Wave), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return f, ctx.Err()
}

func (d *Drain) forecast(p *podState, now time.Time) PodForecast {
	r := p.receipt()
	f := PodForecast{
		Namespace: r.Namespace, Name: r.Name, UID: r.UID, Owner: r.Owner, Verdict: r.Verdict,
		Action: r.Action, Wave: r.Wave, GraceWanted: r.GraceWanted, GraceGiven: r.GraceGiven, Obstacle: p.blocked,
	}
	if p.waiting() {
		f.How, f.GraceGiven = Evicted, int64(grantedGrace(p.wanted, d.terms, now)/time.Second)
		if d.o.DisableEviction {
			f.How = DeletedOnRequest
		}
	}
	return f
}

// learnBudgets reads the budgets of every namespace with pods to evict, and says where it could not.
func (d *Drain) learnBudgets(ctx context.Context) (problems []string) {
	for _, p := range d.inOrder() {
		ns := p.pod.Namespace
		if d.o.DisableEviction || !p.waiting() || !d.budgets.unread(ns) {
			continue
		}
		list, err := listOnce(ctx, func(ctx context.Context, h kubeapi.Handler[kubeapi.PodDisruptionBudget]) error {
			return d.api.FollowBudgets(ctx, ns, h)
		})
		if err != nil {
			problems = append(problems, fmt.Sprintf("namespace %s: reading its disruption budgets: %v", ns, err))
		}
		d.budgets.of(ns).learn(list, err)
	}
	return problems
}

// foresee tells from the budgets' numbers which pods they would hold.
func (d *Drain) foresee(now time.Time) {
	spent := map[*kubeapi.PodDisruptionBudget]int32{}
	for _, p := range d.inOrder() {
		if !p.waiting() || exempt(&p.pod) || d.o.DisableEviction {
			continue
		}
		covering, _ := d.budgets.covering(&p.pod)
		switch len(covering) {
		case 0:
		case 1:
			b := covering[0]
			if !ready(&p.pod) && b.Status.DesiredHealthy > 0 && b.Status.CurrentHealthy >= b.Status.DesiredHealthy {
				continue // it is not what the budget counts
			}
			if spent[b] >= b.Status.DisruptionsAllowed {
				p.obstruct(Budget, b.Namespace+"/"+b.Name, explainOne(b)+afterOthers(spent[b]), now)
			}
			spent[b]++
		default:
			p.obstruct(SeveralBudgets, "", d.budgets.explain(SeveralBudgets, &p.pod, ""), now)
		}
	}
}

func afterOthers(before int32) string {
	if before == 0 {
		return ""
	}
	return fmt.Sprintf("; %d of this node's pods go first", before)
}

// rehearse sends each eviction as a dry run. What the API server denies is an obstacle whatever the numbers said; what
// it allows is none, unless the budget would be spent on the node's other pods: a dry run spends nothing.
func (d *Drain) rehearse(ctx context.Context, now time.Time) {
	var group sync.WaitGroup
	slots := make(chan struct{}, d.o.MaxInFlight)
	answers := make(map[*podState]*error)
	for _, p := range d.inOrder() {
		if !p.waiting() {
			continue
		}
		answer := new(error)
		answers[p] = answer
		r, _ := d.removal(p, now)
		r.DryRun = true
		send := d.api.Evict
		if d.o.DisableEviction {
			send = d.api.DeletePod
		}
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			bounded, cancel := context.WithTimeout(ctx, longestRequest)
			defer cancel()
			*answer = send(bounded, r)
		})
	}
	group.Wait()
	for p, err := range answers {
		switch {
		case *err != nil:
			p.blocked = Blocked{}
			d.foretell(p, *err, now)
		case p.blocked.Reason == Budget && d.allowsAny(p): // it comes after others
		default:
			p.blocked = Blocked{}
		}
	}
}

// foretell records the API server's refusal of a dry run.
func (d *Drain) foretell(p *podState, err error, now time.Time) {
	status := kubeapi.AsStatus(err)
	switch {
	case status == nil:
		p.obstruct(Failing, "", err.Error(), now)
	case isDenial(status):
		p.obstruct(Budget, d.budgets.gateFor(&p.pod, status).name, d.budgets.explain(Budget, &p.pod, denialOf(status)), now)
	case isSeveralBudgets(status):
		p.obstruct(SeveralBudgets, "", d.budgets.explain(SeveralBudgets, &p.pod, status.Message), now)
	case isNamespaceTerminating(status):
		p.obstruct(Failing, "", namespaceGoes, now)
	case isWebhook(status):
		p.obstruct(Webhook, "", status.Message, now)
	case status.Code == http.StatusForbidden:
		p.obstruct(NoRight, "", status.Message, now)
	case status.Code == http.StatusTooManyRequests:
		p.obstruct(Busy, "", status.Message, now)
	default:
		p.obstruct(Failing, "", err.Error(), now)
	}
}

// allowsAny reports that the budget over a pod has something to spend, though perhaps on others.
func (d *Drain) allowsAny(p *podState) bool {
	covering, _ := d.budgets.covering(&p.pod)
	return len(covering) == 1 && covering[0].Status.DisruptionsAllowed > 0
}
