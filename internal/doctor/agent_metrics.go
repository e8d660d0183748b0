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
	// lastReadMetric is when the agent last read the notices, in seconds since the epoch. 0 means never.
	lastReadMetric     = "slipway_agent_last_read_timestamp_seconds"
	defaultMetricsPort = 9818
)

// newAgentMetricsTasks returns a task for the metrics of each running agent. An agent that does not answer affects
// only its own node. A missing permission affects all.
func (r *reader) newAgentMetricsTasks() []task {
	var tasks []task
	for _, pods := range r.facts.agentPodsByNode() {
		pod := findRunningPod(pods)
		if pod == nil {
			continue
		}
		tasks = append(tasks, task{metricsReading, func(ctx context.Context) error {
			at, err := r.fetchLastNoticeRead(ctx, pod)
			if apierrors.IsForbidden(err) {
				return err
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.facts.LastReads[Key{pod.Namespace, pod.Name}] = LastRead{At: at, Err: err}
			return nil
		}})
	}
	return tasks
}

func (r *reader) fetchLastNoticeRead(ctx context.Context, pod *corev1.Pod) (time.Time, error) {
	raw, err := r.client.CoreV1().RESTClient().Get().Namespace(pod.Namespace).Resource("pods").
		Name(fmt.Sprintf("%s:%d", pod.Name, findMetricsPort(pod))).SubResource("proxy").Suffix("metrics").DoRaw(ctx)
	if err != nil {
		return time.Time{}, err
	}
	return parseLastNoticeRead(raw)
}

// scrapePortAnnotation tells Prometheus the port of a pod's metrics.
const scrapePortAnnotation = "prometheus.io/port"

// findMetricsPort returns the port with the name metrics, or the annotated port, or the only port, or the agent's
// default.
func findMetricsPort(pod *corev1.Pod) int32 {
	var all []corev1.ContainerPort
	for i := range pod.Spec.Containers {
		all = append(all, pod.Spec.Containers[i].Ports...)
	}
	for _, p := range all {
		if p.Name == "metrics" {
			return p.ContainerPort
		}
	}
	if port, err := strconv.ParseUint(pod.Annotations[scrapePortAnnotation], 10, 16); err == nil && port > 0 {
		return int32(port)
	}
	if len(all) == 1 {
		return all[0].ContainerPort
	}
	return defaultMetricsPort
}

// parseLastNoticeRead reads lastReadMetric from the metrics of an agent. The zero time means never.
func parseLastNoticeRead(exposition []byte) (time.Time, error) {
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
			return time.Time{}, fmt.Errorf("metric %s is %q: want seconds since the epoch", lastReadMetric, value)
		case seconds == 0:
			return time.Time{}, nil
		}
		return time.UnixMilli(int64(seconds * 1000)), nil
	}
	return time.Time{}, errors.Join(lines.Err(), fmt.Errorf("metric %s is missing", lastReadMetric))
}
