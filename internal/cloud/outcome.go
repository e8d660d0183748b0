package cloud

// OutcomeLabel returns the metric label for the error of a call: "ok", "not-found", "throttled" or "refused". It
// returns "error" for every other error.
func OutcomeLabel(err error) string {
	switch {
	case err == nil:
		return "ok"
	case IsNotFound(err):
		return "not-found"
	case IsThrottled(err):
		return "throttled"
	case RefusalOf(err) != "":
		return "refused"
	}
	return "error"
}
