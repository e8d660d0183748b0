package doctor

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// lastReadMetric is the agent's own word on when it last read the notices, in seconds since the epoch; 0 is never.
	lastReadMetric = "slipway_agent_last_read_timestamp_seconds"
	metricsPort    = 9818
)

// agentMetrics asks every agent that runs for its metrics. One that does not answer says nothing of the others; a right
// that is missing is missing for all.
func (r *reader) agentMetrics() []task {
	var tasks []task
	for _, pods := range r.f.guards() {
		pod := runningOf(pods)
		if pod == nil {
			continue
		}
		tasks = append(tasks, task{readMetrics, func(ctx context.Context) error {
			at, err := r.lastRead(ctx, pod)
			if apierrors.IsForbidden(err) {
				return err
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.f.LastRead[Key{pod.Namespace, pod.Name}] = LastRead{At: at, Err: err}
			return nil
		}})
	}
	return tasks
}

func (r *reader) lastRead(ctx context.Context, pod *corev1.Pod) (time.Time, error) {
	raw, err := r.client.CoreV1().RESTClient().Get().Namespace(pod.Namespace).Resource("pods").
		Name(fmt.Sprintf("%s:%d", pod.Name, portOf(pod))).SubResource("proxy").Suffix("metrics").DoRaw(ctx)
	if err != nil {
		return time.Time{}, err
	}
	return parseLastRead(raw)
}

// scrapePort is the annotation by which Prometheus knows the port of a pod's metrics.
const scrapePort = "prometheus.io/port"

// portOf is the one that a pod calls metrics, the one that its annotation names, its only one, or the agent's own.
func portOf(pod *corev1.Pod) int32 {
	var all []corev1.ContainerPort
	for i := range pod.Spec.Containers {
		all = append(all, pod.Spec.Containers[i].Ports...)
	}
	for _, p := range all {
		if p.Name == "metrics" {
			return p.ContainerPort
		}
	}
	if port, err := strconv.ParseUint(pod.Annotations[scrapePort], 10, 16); err == nil && port > 0 {
		return int32(port)
	}
	if len(all) == 1 {
		return all[0].ContainerPort
	}
	return metricsPort
}

// parseLastRead finds the one metric in an exposition; the zero time is never.
func parseLastRead(exposition []byte) (time.Time, error) {
	lines := bufio.NewScanner(bytes.NewReader(exposition))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		value, ok := strings.CutPrefix(lines.Text(), lastReadMetric+" ")
		if !ok {
			continue
		}
		seconds, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		const year9999 = 253402300799
		switch {
		case err != nil, math.IsNaN(seconds), seconds < 0, seconds > year9999:
			return time.Time{}, fmt.Errorf("its metric %s is %q: want seconds since the epoch", lastReadMetric, value)
		case seconds == 0:
			return time.Time{}, nil
		}
		return time.UnixMilli(int64(seconds * 1000)), nil
	}
	return time.Time{}, errors.Join(lines.Err(), fmt.Errorf("it has no metric %s", lastReadMetric))
}
