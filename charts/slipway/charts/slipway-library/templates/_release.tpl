{{/*
Refuses images of another release, which helm upgrade --reuse-values keeps. Takes a dict: root, value (the name of the value), release (the
release that set the images, or empty).
*/}}
{{- define "slipway.release.refusal" -}}
{{- $version := .root.Chart.AppVersion }}
{{- if and .release (ne .release $version) }}
{{- fail (printf "%s: %s, but this chart is of %s: the images would be of the earlier release, as helm upgrade --reuse-values keeps its defaults; want --reset-then-reuse-values, or %s: \"\" with images of your own" .value .release $version .value) }}
{{- end }}
{{- end }}
