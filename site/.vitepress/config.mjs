// The web site of Slipway's documentation. Environment variables:
//   SITE_BASE   the path of the site on its host, by default /
//   SITE_EDIT   the address of a code host for "Edit this page", such as https://git.example.com/slipway/edit/main; by default
//               pages have no such link
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'
import { originalPath, readNavigation, slugify, stageContent, toSiteLink } from './content.mjs'

const site = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..')
const root = path.resolve(site, '..')
const staged = path.join(site, 'pages')
const { pages } = stageContent(root, staged)

const icon = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" rx="7" fill="#0b5a8f"/>' +
  '<path d="M5 25 27 14v11z" fill="#fff"/><circle cx="11" cy="14" r="4" fill="#8fd0ff"/></svg>'
const iconURL = 'data:image/svg+xml,' + encodeURIComponent(icon)

// adaptMarkdown renders the repository's Markdown as code hosts do.
function adaptMarkdown(md) {
  md.core.ruler.push('repository', (state) => {
    const page = originalPath(state.env.relativePath ?? '')
    // Pages that show files have links of the site already.
    const isPage = pages.has(page)
    const visit = (tokens) => {
      for (const token of tokens) {
        if (token.type === 'link_open' && isPage) {
          token.attrSet('href', toSiteLink(root, pages, page, token.attrGet('href')))
        }
        if (token.type === 'html_block') {
          token.content = splitPictures(token.content)
        }
        visit(token.children ?? [])
      }
    }
    visit(state.tokens)
  })
  // A page is a template for Vue, in which {{ }} has a meaning.
  for (const kind of ['text', 'code_inline', 'code_block']) {
    const rule = md.renderer.rules[kind]
    md.renderer.rules[kind] = (...args) => rule(...args).replaceAll('{{', '&#123;&#123;')
  }
  // The word after the language names the file; the others are for tests.
  const fence = md.renderer.rules.fence
  md.renderer.rules.fence = (...args) => {
    const token = args[0][args[1]]
    const [language = '', ...words] = token.info.trim().split(/\s+/)
    const file = words.find((word) => word.startsWith('file='))
    token.info = language || 'text'
    const block = fence(...args)
    return file ? `<div class="file-name">${md.utils.escapeHtml(file.slice(5))}</div>${block}` : block
  }
}

// splitPictures replaces a picture for a light and a dark system by two images, because readers switch on the page too.
function splitPictures(html) {
  return html.replace(/<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">\s*<img ([^>]*?)src="([^"]+)"([^>]*)>\s*<\/picture>/g,
    (_, dark, before, light, after) => [['light-only', light], ['dark-only', dark]]
      .map(([name, src]) => `<img class="${name}" ${before}src="./${src}"${after}>`).join(''))
}

export default defineConfig({
  title: 'Slipway',
  description: 'Slipway takes Kubernetes nodes into and out of service without dropping work.',
  lang: 'en',
  base: process.env.SITE_BASE || '/',
  srcDir: staged,
  cacheDir: path.join(site, 'node_modules', '.cache'),
  outDir: path.join(root, 'dist', 'site'),
  head: [['link', { rel: 'icon', href: iconURL }]],
  markdown: {
    theme: { light: 'github-light-high-contrast', dark: 'github-dark-high-contrast' },
    anchor: { slugify },
    attrs: { disable: true },
    emoji: { enabled: [] },
    config: adaptMarkdown,
  },
  transformPageData(page) {
    page.filePath = originalPath(page.filePath)
  },
  themeConfig: {
    logo: iconURL,
    nav: [
      { text: 'Documentation', link: '/docs/', activeMatch: '^/docs/' },
      { text: 'Install', link: '/docs/install' },
      { text: 'Questions', link: '/docs/faq' },
    ],
    sidebar: readNavigation(root, pages),
    outline: { level: [2, 3] },
    search: { provider: 'local' },
    ...(process.env.SITE_EDIT && { editLink: { pattern: process.env.SITE_EDIT + '/:path', text: 'Edit this page' } }),
  },
})
