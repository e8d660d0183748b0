package cloudpool

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/slipway-dev/slipway/api/v1alpha1"
	"github.com/slipway-dev/slipway/internal/retirement"
)

// tooLate says why a machine cannot be kept from its end any more: whoever retires it has drained its node.
func tooLate(machine string, rt *v1alpha1.NodeRetirement) error {
	switch rt.Status.Phase {
	case v1alpha1.Drained, v1alpha1.NodeDeleted, v1alpha1.InstanceDeleted:
		return failure(NotPossible, "machine %s cannot be kept any more: NodeRetirement %s of its node %s is %s", machine, rt.Name, rt.Spec.NodeName,
			rt.Status.Phase)
	}
	return nil
}

// waits reports a retirement that has done nothing yet.
func waits(rt *v1alpha1.NodeRetirement) bool {
	return (rt.Status.Phase == "" || rt.Status.Phase == v1alpha1.Pending) && !retirement.InFlight(rt)
}

// release has a machine of a server's pool that is to run on be given back by whoever retires it, which is called off: nobody
// could end what the server does not give up, nor would its node be given back. One that waits is left alone where that is
// enough, as for a machine that its server says is not evictable; so is one that waits until its cloud has taken the machine away.
func (u *Updater) release(ctx context.Context, machine string, waiting bool) error {
	retirements, err := u.o.Cluster.unfinished(ctx)
	switch {
	case err != nil:
		return clusterFailure("reading the NodeRetirements", err)
	case len(retirements) == 0:
		return nil
	}
	pool, err := u.o.Backend.Pool(ctx)
	if err != nil {
		return err // the server's own word, which it would have for the request too
	}
	nodes, err := u.o.Cluster.Nodes()
	if err != nil {
		return clusterFailure("reading the nodes", err)
	}
	rt := retiring(Pair(pool.Machines, nodes, u.o.Backend).Members, retirements, u.o.Backend)[machine]
	if rt == nil || waits(rt) && (!waiting || rt.Spec.Notice != nil) {
		return nil
	}
	if err := tooLate(machine, rt); err != nil {
		return err
	}
	if err := u.o.Cluster.callOff(ctx, rt.Name); err != nil {
		return clusterFailure("calling a retirement off", err)
	}
	u.log.Info("a retirement is called off: its machine is to run on", "machine", machine, "node", rt.Spec.NodeName, "retirement", rt.Name)
	return u.givenBack(ctx, machine, rt.Name)
}

// givenBack waits until a retirement that was called off has given its node back.
func (u *Updater) givenBack(ctx context.Context, machine, name string) error {
	began := time.Now()
	for {
		rt := &v1alpha1.NodeRetirement{}
		err := u.o.Cluster.objects.Get(ctx, client.ObjectKey{Name: name}, rt)
		switch {
		case apierrors.IsNotFound(err), err == nil && rt.Status.Phase.Finished():
			return nil
		case err != nil:
			return clusterFailure("reading a NodeRetirement", err)
		case time.Since(began) > u.o.Pace.Take:
			if err := tooLate(machine, rt); err != nil { // it was, before it could be called off
				return err
			}
			return failure(NotPossible, "NodeRetirement %s of its node %s was called off, and has not given the node back within %s: ask again",
				name, rt.Spec.NodeName, u.o.Pace.Take)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(takeEvery):
		}
	}
}
