package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/elapsed"
)

// exitNotRetired is the exit code of slipway retire --wait if the retirement did not succeed.
const exitNotRetired = 2

const (
	// waitRetryInterval is the pause before --wait watches again.
	waitRetryInterval = time.Second
	// managerTimeout is how long --wait waits before it reports a retirement that no manager has observed.
	managerTimeout = 10 * time.Second
)

// retirementWait is the wait of slipway retire --wait for the end of a retirement. It follows a watch, because a manager
// with --retirement-ttl=0 deletes a finished NodeRetirement at once. Only the event of the deletion has the last phase then.
type retirementWait struct {
	client client.WithWatch
	// retirement is the NodeRetirement as the API server returned it last.
	retirement *v1alpha1.NodeRetirement
	// resourceVersion is the version that the next watch starts from.
	resourceVersion string
	// out gets the progress. problems gets warnings.
	out, problems io.Writer

	unobserved <-chan time.Time
	printed    string // the last line of the progress
	failing    bool   // the last request failed
}

// run prints the progress until the retirement has finished. If the retirement did not succeed, it returns an error with
// exitNotRetired. If only the wait has ended, the error says that the retirement continues.
func (w *retirementWait) run(ctx context.Context) error {
	if finished, err := w.update(w.retirement, false); finished { // a repeated creation can find it finished
		return err
	}
	w.unobserved = time.After(managerTimeout)
	for {
		finished, err := w.follow(ctx)
		if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) { // the API server has no events since the last one
			finished, err = w.read(ctx)
		}
		switch {
		case finished:
			return err
		case ctx.Err() != nil:
			return w.explainEnd(context.Cause(ctx))
		case err != nil && !isUnanswered(err) && !apierrors.IsTooManyRequests(err):
			return w.explainEnd(err)
		case err != nil && !w.failing:
			fmt.Fprintf(w.problems, "cannot read NodeRetirement %s, trying again: %v\n", w.retirement.Name, err)
		}
		w.failing = err != nil
		elapsed.Sleep(ctx, waitRetryInterval)
	}
}

// follow prints the progress until the retirement has finished, ctx has ended, or the watch has ended.
func (w *retirementWait) follow(ctx context.Context) (finished bool, err error) {
	events, err := w.client.Watch(ctx, &v1alpha1.NodeRetirementList{}, &client.ListOptions{
		FieldSelector: w.selector(),
		Raw:           &metav1.ListOptions{ResourceVersion: w.resourceVersion},
	})
	if err != nil {
		return false, err
	}
	defer events.Stop()
	for {
		select {
		case <-ctx.Done():
			return false, nil
		case <-w.unobserved:
			if w.retirement.Status.Phase == "" {
				fmt.Fprintf(w.problems, "no manager has observed it within %s: want a running manager with a --selector that matches %s\n",
					managerTimeout, describeLabels(w.retirement.Labels))
			}
		case event, open := <-events.ResultChan():
			rt, is := event.Object.(*v1alpha1.NodeRetirement)
			switch {
			case !open:
				return false, nil
			case !is:
				return false, apierrors.FromObject(event.Object)
			}
			if finished, err = w.update(rt, event.Type == watch.Deleted); finished {
				return true, err
			}
		}
	}
}

// read reads the NodeRetirement and prints the progress. It lists, because the API server has the events since the version of
// a list. The version of an object that has not changed for a long time is too old for a watch.
func (w *retirementWait) read(ctx context.Context) (finished bool, err error) {
	var list v1alpha1.NodeRetirementList
	if err := w.client.List(ctx, &list, &client.ListOptions{FieldSelector: w.selector()}); err != nil {
		return false, err
	}
	if len(list.Items) == 0 {
		return true, fmt.Errorf("node %s: NodeRetirement %s was deleted while it could not be read; its last known phase is %s",
			w.retirement.Spec.NodeName, w.retirement.Name, w.phase())
	}
	finished, err = w.update(&list.Items[0], false)
	w.resourceVersion = list.ResourceVersion
	return finished, err
}

func (w *retirementWait) selector() fields.Selector {
	return fields.OneTermEqualSelector(metav1.ObjectNameField, w.retirement.Name)
}

// update prints the progress. It reports whether the retirement has finished, and returns an error if it did not succeed.
func (w *retirementWait) update(rt *v1alpha1.NodeRetirement, deleted bool) (finished bool, err error) {
	*w.retirement, w.resourceVersion = *rt, rt.ResourceVersion
	status := rt.Status
	if line := fmt.Sprintf("%s: %s", status.Phase, status.Message); line != w.printed && status.Phase != "" {
		w.printed = line
		fmt.Fprintln(w.out, line)
	}
	switch {
	case status.Phase == v1alpha1.Succeeded:
		return true, nil
	case status.Phase.IsFinal():
		return true, &exitError{exitNotRetired, fmt.Errorf("node %s: %s: %s", rt.Spec.NodeName, status.Phase, status.Message)}
	case deleted:
		return true, &exitError{exitNotRetired, fmt.Errorf("node %s: NodeRetirement %s was deleted in phase %s", rt.Spec.NodeName, rt.Name, w.phase())}
	}
	return false, nil
}

// phase returns the phase of the retirement. A retirement without a phase is Pending.
func (w *retirementWait) phase() v1alpha1.Phase {
	return cmp.Or(w.retirement.Status.Phase, v1alpha1.Pending)
}

// explainEnd returns the error for a wait that ends before the retirement.
func (w *retirementWait) explainEnd(err error) error {
	if errors.Is(err, context.Canceled) {
		err = fmt.Errorf("node %s: interrupted", w.retirement.Spec.NodeName)
	}
	return &hintError{err, fmt.Sprintf("NodeRetirement %s continues; to cancel it, run kubectl delete nr %[1]s", w.retirement.Name)}
}

func describeLabels(set labels.Set) string {
	if len(set) == 0 {
		return "no labels"
	}
	return "the labels " + set.String()
}
